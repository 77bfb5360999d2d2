package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric/noop"
	"golang.org/x/sync/semaphore"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

// A message is acknowledged after its transaction, however long that takes.
func TestReceiverAcksAfterCommit(t *testing.T) {
	t.Parallel()
	b, store := newBroker(t), newStore()
	began, commit := make(chan struct{}), make(chan struct{})
	store.before = func(context.Context, []note) error {
		close(began)
		<-commit
		return nil
	}
	b.start(consumer.Config{}, store)
	id := b.publish(messages(1)...)[0]
	<-began
	time.Sleep(350 * time.Millisecond) // acks leave every 100 ms
	if got := b.find(id).Acks; got != 0 {
		t.Errorf("acks before the commit = %d, want 0", got)
	}
	close(commit)
	b.waitForAcks()
}

// Events of a note may come twice, late or with gaps. Each is acknowledged, and the newest
// version stays.
func TestReceiverAcknowledgesEveryOutcome(t *testing.T) {
	t.Parallel()
	const applied, gap, duplicate, stale = envelope.Applied, envelope.AppliedAfterGap, envelope.Duplicate, envelope.Stale
	for _, test := range []struct {
		name     string
		versions []int64 // a repeated one is the same event
		want     []envelope.Outcome
		newest   int64
	}{
		{"in order", []int64{1, 2, 3}, []envelope.Outcome{applied, applied, applied}, 3},
		{"twice", []int64{1, 1, 2, 1}, []envelope.Outcome{applied, duplicate, applied, duplicate}, 2},
		{"late", []int64{1, 3, 2}, []envelope.Outcome{applied, gap, stale}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b, store, id := newBroker(t), newStore(), uuid.NewString()
			b.start(consumer.Config{}, store)
			events := map[int64]consumer.Message{}
			for _, version := range test.versions {
				if events[version].ID == "" {
					events[version] = newNote(id, version)
				}
				b.publish(events[version])
				b.waitForAcks()
			}
			versions, outcomes, _ := store.state()
			if diff := cmp.Diff(test.want, outcomes); diff != "" || versions[id] != test.newest {
				t.Errorf("version %d, want %d; outcomes (-want +got):\n%s", versions[id], test.newest, diff)
			}
		})
	}
}

// Events of one note are applied in the order in which they were published, though many are
// pulled at once, and some transactions fail.
func TestReceiverKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	const notes, versions = 10, 20
	b, store := newBroker(t), newStore()
	var calls atomic.Int64
	store.before = func(context.Context, []note) error {
		switch n := calls.Add(1); {
		case n%5 == 0:
			return unavailable()
		case n%7 == 0:
			return errors.New("refused")
		}
		return nil
	}
	for n := range notes {
		id := uuid.NewSHA1(uuid.Nil, []byte{byte(n)}).String()
		for version := range int64(versions) {
			b.publish(newNote(id, version+1))
		}
	}
	b.start(consumer.Config{BatchSize: 7, MaxAttempts: 1000}, store)
	b.waitForAcks()
	_, outcomes, _ := store.state()
	if slices.ContainsFunc(outcomes, func(o envelope.Outcome) bool { return o != envelope.Applied }) || len(outcomes) != notes*versions {
		t.Errorf("outcomes of %d events: %v, want %d that are applied in order", len(outcomes), outcomes, notes*versions)
	}
}

// An event that the store refuses, or that makes the store panic, does not delay the others of its
// batch: they are applied at once. The event is quarantined whole after MaxAttempts.
func TestReceiverIsolatesPoison(t *testing.T) {
	for name, test := range map[string]struct {
		fail   func() error
		reason string
	}{
		"refused": {func() error { return errors.New("value too long") }, "refused 3 times: value too long"},
		"panic":   {func() error { panic("index out of range") }, "refused 3 times: panic: index out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, store, start := messages(100), newStore(), time.Now()
				poison := all[17]
				var othersDone time.Duration
				store.before = func(_ context.Context, notes []note) error {
					if slices.ContainsFunc(notes, func(n note) bool { return n.ID.String() == poison.ID }) {
						return test.fail()
					}
					othersDone = time.Since(start)
					return nil
				}
				project(t, consumer.Config{Workers: 1, MaxAttempts: 3}, store, all, 30*time.Second)
				versions, _, quarantine := store.state()
				if len(versions) != 99 || othersDone > 10*time.Millisecond {
					t.Errorf("%d others were applied after %s, want 99 at once", len(versions), othersDone)
				}
				want := map[string]envelope.Quarantined{poison.ID: {
					MessageID: poison.ID, OrderingKey: poison.Key, Attributes: poison.Attributes, Payload: poison.Data,
					Reason: test.reason, PublishTime: poison.PublishTime,
				}}
				if diff := cmp.Diff(want, quarantine); diff != "" {
					t.Errorf("quarantine (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The log has one line for each state of an event that is refused, however often it is tried.
func TestReceiverLogsEachStateOnce(t *testing.T) {
	t.Parallel()
	const refused = `level=WARN msg="consumer: event refused, trying again" attempts=1 retry_in_ms=some` + "\n"
	for failures, want := range map[int]string{
		3:   refused + `level=INFO msg="consumer: refused event applied" attempts=4` + "\n",
		100: refused + `level=ERROR msg="consumer: message quarantined" attempts=5` + "\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			store := newStore()
			store.log = slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				switch a.Key {
				case slog.LevelKey, slog.MessageKey, "attempts":
					return a
				case "retry_in_ms":
					return slog.String(a.Key, "some")
				}
				return slog.Attr{}
			}})
			store.before = func(context.Context, []note) error {
				if failures--; failures >= 0 {
					return errors.New("refused")
				}
				return nil
			}
			project(t, consumer.Config{Workers: 1}, store, messages(1), time.Minute)
			if diff := cmp.Diff(want, out.String()); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

// A message that cannot be decoded is quarantined whole and acknowledged, and does not block its
// key.
func TestReceiverQuarantinesUndecodable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil  func(*consumer.Message)
		reason string
	}{
		"broken bytes":         {func(m *consumer.Message) { m.Data = []byte("broken") }, "payload is no note"},
		"malformed attribute":  {func(m *consumer.Message) { m.Attributes[envelope.AttrVersion] = "one" }, `attribute version is "one"`},
		"newer schema version": {func(m *consumer.Message) { m.Attributes[envelope.AttrSchemaVersion] = "2" }, "schema version 2 is newer"},
		"no attributes":        {func(m *consumer.Message) { m.Attributes = nil }, "attribute event_id is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, store, id := newBroker(t), newStore(), uuid.NewString()
			b.start(consumer.Config{}, store)
			bad := newNote(id, 1)
			test.spoil(&bad)
			messageID := b.publish(bad, newNote(id, 2))[0]
			b.waitForAcks()
			versions, _, quarantine := store.state()
			got := quarantine[messageID]
			want := envelope.Quarantined{
				MessageID: messageID, OrderingKey: id, Attributes: bad.Attributes, Payload: bad.Data,
				Reason: got.Reason, PublishTime: b.find(messageID).PublishTime,
			}
			if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(got.Reason, test.reason) {
				t.Errorf("quarantined, with a reason that has %q (-want +got):\n%s", test.reason, diff)
			}
			if nacks := b.find(messageID).Nacks; nacks != 0 || versions[id] != 2 {
				t.Errorf("it was nacked %d times, and the note has version %d, want 0 and 2", nacks, versions[id])
			}
		})
	}
}

// The database is unavailable for five seconds, and does not respond in the last two of them. After
// that, everything is applied. No message is given back or quarantined, and the calls are few.
func TestReceiverWaitsForDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, start := newStore(), time.Now()
		var calls atomic.Int64
		store.before = func(ctx context.Context, _ []note) error {
			switch unavailableFor := time.Since(start); {
			case unavailableFor < 3*time.Second:
				calls.Add(1)
				return unavailable()
			case unavailableFor < 5*time.Second:
				calls.Add(1)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		project(t, consumer.Config{MaxAttempts: 1, TransactionTimeout: time.Second}, store, messages(500), 20*time.Second)
		if versions, _, quarantine := store.state(); len(versions) != 500 || len(quarantine) > 0 {
			t.Errorf("%d messages are applied and %d in quarantine, want 500 and none", len(versions), len(quarantine))
		}
		if got := calls.Load(); got > 100 {
			t.Errorf("calls of the store while it is unavailable = %d, want at most 100", got)
		}
	})
}

// Fifty receivers share two permits. Each gets one in its turn, beside one that is always busy and one
// whose transactions never end by themselves. A worker that waits for a permit is not stuck.
func TestReceiversShareAFewPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = time.Hour
		permits, start := semaphore.NewWeighted(2), time.Now()
		pgtest.Must(t, permits.Acquire(t.Context(), 2))
		var running atomic.Int64
		var receivers sync.WaitGroup
		ctx, stop := context.WithTimeout(t.Context(), waiting+time.Minute)
		defer stop()
		for i := range 50 {
			store, source := newStore(), messages(1)
			if i == 0 {
				source = messages(2000)
			}
			store.before = func(ctx context.Context, _ []note) error {
				if n := running.Add(1); n > 2 {
					t.Errorf("%d transactions at a time, want at most 2", n)
				}
				defer running.Add(-1)
				if i == 1 {
					<-ctx.Done()
					return ctx.Err()
				}
				time.Sleep(10 * time.Millisecond)
				if waited := time.Since(start) - waiting; i > 1 && waited > time.Second {
					t.Errorf("receiver %d waited %s for its turn, want at most one transaction of each other receiver", i, waited)
				}
				return nil
			}
			receiver := newReceiver(t, consumer.Config{BatchSize: 1, Workers: 1, Permits: permits}, store, source)
			receivers.Go(func() {
				if err := receiver.Run(ctx); err != nil {
					t.Error(err)
				}
				if versions, _, _ := store.state(); i != 1 && len(versions) != len(source) {
					t.Errorf("receiver %d has applied %d events, want %d", i, len(versions), len(source))
				}
			})
			time.AfterFunc(waiting, func() {
				if err := receiver.Stuck(); err != nil {
					t.Errorf("a receiver without a permit: %v", err)
				}
			})
		}
		time.Sleep(waiting)
		permits.Release(2)
		receivers.Wait()
	})
}

// A stop in the middle: a message that is committed in time is acknowledged, though the ack comes
// after the stop. A message that is not committed is given back, and the next receiver gets it.
func TestReceiverStopsInTheMiddle(t *testing.T) {
	t.Parallel()
	b, store := newBroker(t), newStore()
	slow, stuck := messages(1)[0], messages(1)[0]
	var restarted atomic.Bool
	var began sync.WaitGroup
	began.Add(2)
	store.before = func(ctx context.Context, notes []note) error {
		if restarted.Load() {
			return nil
		}
		began.Done()
		if notes[0].ID.String() == stuck.ID {
			<-ctx.Done()
			return ctx.Err()
		}
		time.Sleep(200 * time.Millisecond)
		return nil
	}
	cfg := consumer.Config{BatchSize: 1, TransactionTimeout: time.Hour, StopTimeout: 2 * time.Second}
	stop := b.start(cfg, store)
	ids := b.publish(slow, stuck)
	began.Wait()
	stop()
	if got := b.find(ids[0]); got.Acks != 1 || got.Nacks != 0 {
		t.Errorf("the committed message has %d acks and %d nacks, want 1 and 0", got.Acks, got.Nacks)
	}
	pgtest.Eventually(t, 20*time.Second, "the stuck message to be given back", func() bool { return b.find(ids[1]).Nacks == 1 })
	if got := b.find(ids[1]).Acks; got != 0 {
		t.Errorf("the stuck message has %d acks, want 0", got)
	}
	restarted.Store(true)
	b.start(cfg, store)
	b.waitForAcks()
	if versions, _, _ := store.state(); len(versions) != 2 {
		t.Errorf("%d messages are applied, want 2", len(versions))
	}
}

// A receiver that stops while an event of a note fails gives back the later events too, though
// the store would take them. The next receiver applies all in order.
func TestReceiverHoldsBackAKeyWhenItStops(t *testing.T) {
	t.Parallel()
	b, store, id := newBroker(t), newStore(), uuid.NewString()
	var failures atomic.Int64
	var restarted atomic.Bool
	store.before = func(_ context.Context, notes []note) error {
		if !restarted.Load() && notes[0].Version == 1 {
			failures.Add(1)
			return unavailable()
		}
		return nil
	}
	b.publish(newNote(id, 1), newNote(id, 2), newNote(id, 3))
	stop := b.start(consumer.Config{}, store)
	pgtest.Eventually(t, 20*time.Second, "the first event to fail", func() bool { return failures.Load() >= 3 })
	stop()
	if _, outcomes, _ := store.state(); len(outcomes) > 0 {
		t.Errorf("outcomes = %v before the first event is applied, want none", outcomes)
	}
	restarted.Store(true)
	b.start(consumer.Config{}, store)
	b.waitForAcks()
	_, outcomes, _ := store.state()
	if diff := cmp.Diff(slices.Repeat([]envelope.Outcome{envelope.Applied}, 3), outcomes); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// A handler gets at least one event, and none that it could not decode.
func TestHandlersNeverSeeNil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, store := messages(20), newStore()
		all[3].Data, all[7].Data, all[13].Attributes = []byte("broken"), []byte("panic"), nil
		store.before = func(_ context.Context, notes []note) error {
			if len(notes) == 0 || slices.ContainsFunc(notes, func(n note) bool { return n.ID == uuid.Nil }) {
				t.Errorf("the handler got %v", notes)
			}
			return nil
		}
		project(t, consumer.Config{}, store, all, time.Second)
		if versions, _, quarantine := store.state(); len(versions) != 17 || len(quarantine) != 3 {
			t.Errorf("%d events are applied and %d in quarantine, want 17 and 3", len(versions), len(quarantine))
		}
	})
}

// A subscription without a name, or with a handler that was not made, is refused.
func TestNewRefusesAnIncompleteSubscription(t *testing.T) {
	for want, subscription := range map[string]consumer.Input{
		"subscription projects/p/subscriptions/fake has no consumer name": {Source: fakeSource{}},
		`the handler of "note" is empty: make it with Handle`:             {Source: fakeSource{}, Consumer: "test", Handlers: consumer.Handlers{"note": {}}},
	} {
		if _, err := consumer.New(consumer.Config{}, subscription, newStore(), slog.New(slog.DiscardHandler), noop.Meter{}); err == nil || err.Error() != want {
			t.Errorf("New() = %v, want %s", err, want)
		}
	}
}
