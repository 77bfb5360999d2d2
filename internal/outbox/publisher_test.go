package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/outbox"
)

// memory is a store in memory: lanes with leases, and no blocked aggregates.
type memory struct {
	mu      sync.Mutex
	lanes   []memoryLane
	fail    func() error // of claims; nil: they succeed
	seq     int64
	claims  []memoryClaim
	settled []event.Settlement
}

type memoryLane struct {
	pending []event.Claimed
	token   int64
	until   time.Time
}

type memoryClaim struct {
	at    time.Time
	batch int
	found int // events
	busy  int // lanes that were leased already
}

func newMemory(lanes int) *memory { return &memory{lanes: make([]memoryLane, lanes)} }

// add appends events to a lane.
func (s *memory) add(lane int, names string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range claimed(names) {
		s.seq++
		e.Seq = s.seq
		s.lanes[lane].pending = append(s.lanes[lane].pending, e)
	}
}

// addPayload appends an event that carries its name.
func (s *memory) addPayload(lane int, name string) {
	s.add(lane, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	pending := s.lanes[lane].pending
	pending[len(pending)-1].Payload = []byte(name)
}

// left answers what is pending.
func (s *memory) left() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lane := range s.lanes {
		for _, e := range lane.pending {
			names = append(names, nameOf(e.Message))
		}
	}
	return names
}

// claimsSince answers the claims from a time on.
func (s *memory) claimsSince(start time.Time) []memoryClaim {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.claims, func(c memoryClaim) bool { return !c.at.Before(start) })
	if i < 0 {
		return nil
	}
	return slices.Clone(s.claims[i:])
}

func (s *memory) ClaimEvents(_ context.Context, batch int, maxBytes int64, lease time.Duration) (event.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	made := memoryClaim{at: now, batch: batch}
	pick := -1
	for i, lane := range s.lanes {
		switch {
		case lane.until.After(now):
			made.busy++
		case len(lane.pending) > 0 && (pick < 0 || lane.until.Before(s.lanes[pick].until)):
			pick = i
		}
	}
	var claim event.Claim
	var err error
	if s.fail != nil {
		err = s.fail()
	}
	if err == nil && pick >= 0 {
		lane := &s.lanes[pick]
		lane.token++
		lane.until = now.Add(lease)
		claim = event.Claim{Lane: int16(pick), Token: lane.token}
		for _, e := range lane.pending[:min(batch, len(lane.pending))] {
			if maxBytes <= 0 {
				break
			}
			claim.Events = append(claim.Events, e)
			maxBytes -= int64(len(e.Payload))
		}
	}
	made.found = len(claim.Events)
	s.claims = append(s.claims, made)
	return claim, err
}

func (s *memory) SettleClaim(_ context.Context, settlement event.Settlement) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lane := &s.lanes[settlement.Lane]
	if lane.token != settlement.Token {
		return false, nil
	}
	lane.token++
	lane.until = time.Now()
	lane.pending = slices.DeleteFunc(lane.pending, func(e event.Claimed) bool { return slices.Contains(settlement.Done, e.Seq) })
	s.settled = append(s.settled, settlement)
	return true, nil
}

// recorder is a broker that records what it is sent; answer may be nil, then
// it acknowledges at once.
type recorder struct {
	answer func(m event.Message) outbox.Receipt

	mu   sync.Mutex
	sent []string
	at   []time.Time
}

func (b *recorder) Publish(m event.Message) outbox.Receipt {
	b.mu.Lock()
	b.sent = append(b.sent, nameOf(m))
	b.at = append(b.at, time.Now())
	b.mu.Unlock()
	if b.answer == nil {
		return answer(nil)
	}
	return b.answer(m)
}

// take answers what was sent since the last call, and when the last of it was.
func (b *recorder) take() (sent []string, last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.at) > 0 {
		last = b.at[len(b.at)-1]
	}
	sent, b.sent, b.at = b.sent, nil, nil
	return sent, last
}

// run runs a publisher until stop is called, which waits for it.
func run(t testing.TB, publisher *outbox.Publisher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := publisher.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// logged makes a publisher and answers what it will have logged; read that
// after Run returned.
func logged(t *testing.T, store outbox.Store, broker outbox.Broker, cfg outbox.Config) (*outbox.Publisher, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	publisher, err := outbox.New(store, broker, cfg, slog.New(slog.NewTextHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return publisher, &log
}

// An idle process asks once per PollInterval, whatever its workers are.
func TestIdlePublisherAsksOncePerPollInterval(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4, 16} {
		synctest.Test(t, func(t *testing.T) {
			store := newMemory(8)
			stop := run(t, mustNew(t, store, &recorder{}, outbox.Config{Workers: workers, PollInterval: time.Second}))
			time.Sleep(10 * time.Second) // it settles
			start := time.Now()
			time.Sleep(100 * time.Second)
			got := len(store.claimsSince(start))
			stop()
			if got < 99 || got > 101 {
				t.Errorf("%d workers: %d claims in 100 s, want one per second", workers, got)
			}
		})
	}
}

// A nudge wakes a worker at once, and one worker only.
func TestNudgeWakesAWorkerAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(8), &recorder{}
		publisher := mustNew(t, store, topic, outbox.Config{PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(5 * time.Hour)
		for range 10 { // whoever of the workers takes it
			start := time.Now()
			store.add(0, "a1 a2 b1")
			publisher.Nudge()
			synctest.Wait()
			if sent, _ := topic.take(); !slices.Equal(sent, []string{"a1", "a2", "b1"}) {
				t.Errorf("sent at once: %q, want everything", sent)
			}
			if got := len(store.claimsSince(start)); got != 1 { // what it was called for, and no look more
				t.Errorf("%d claims, want 1", got)
			}
			time.Sleep(time.Hour)
		}
	})
}

// A nudge is never lost and never blocks: before Run, while all workers are
// busy, and many at once.
func TestNudgeIsNeverLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(2), &recorder{answer: func(event.Message) outbox.Receipt { return answerAfter(time.Second, nil) }}
		publisher := mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour})
		for range 100 {
			publisher.Nudge()
		}
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		store.add(0, "a1")
		publisher.Nudge()
		time.Sleep(time.Second / 2) // the one worker waits for the broker
		store.add(1, "b1")
		publisher.Nudge()
		time.Sleep(5 * time.Second)
		if sent, _ := topic.take(); !slices.Equal(sent, []string{"a1", "b1"}) {
			t.Errorf("sent %q, want a1 and b1", sent)
		}
	})
}

// A nudge about an event of a lane that another worker has is not lost, though
// the worker that it wakes finds nothing: who has the lane looks again.
func TestNudgeAboutALeasedLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Shorter than the first pause of the sentry, which would find it as well.
		const publishing = 3 * time.Millisecond
		store, topic := newMemory(8), &recorder{answer: func(event.Message) outbox.Receipt { return answerAfter(publishing, nil) }}
		publisher := mustNew(t, store, topic, outbox.Config{PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		for range 10 {
			start := time.Now()
			store.add(0, "a1")
			publisher.Nudge()
			time.Sleep(time.Millisecond)
			store.add(0, "a2")
			publisher.Nudge()
			time.Sleep(time.Hour)
			if sent, last := topic.take(); !slices.Equal(sent, []string{"a1", "a2"}) || last.Sub(start) != publishing {
				t.Errorf("sent %q, the last one after %s, want a1, and a2 after %s", sent, last.Sub(start), publishing)
			}
		}
	})
}

// The worker that finds nothing looks again itself when, by the time it knows,
// nobody is in a pass any longer who could.
func TestNudgeAboutALaneReleasedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const publishing = 3 * time.Millisecond
		store := slowEmpty{memory: newMemory(8), by: 4 * time.Millisecond}
		topic := &recorder{answer: func(event.Message) outbox.Receipt { return answerAfter(publishing, nil) }}
		publisher := mustNew(t, store, topic, outbox.Config{PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		start := time.Now()
		store.add(0, "a1")
		publisher.Nudge()
		time.Sleep(time.Millisecond)
		store.add(0, "a2")
		publisher.Nudge()
		time.Sleep(time.Hour)
		if sent, last := topic.take(); !slices.Equal(sent, []string{"a1", "a2"}) || last.Sub(start) != 5*time.Millisecond {
			t.Errorf("sent %q, the last one after %s, want a1, and a2 after 5ms", sent, last.Sub(start))
		}
	})
}

// slowEmpty takes a while to say that there is nothing.
type slowEmpty struct {
	*memory
	by time.Duration
}

func (s slowEmpty) ClaimEvents(ctx context.Context, batch int, maxBytes int64, lease time.Duration) (event.Claim, error) {
	claim, err := s.memory.ClaimEvents(ctx, batch, maxBytes, lease)
	if claim.Token == 0 {
		time.Sleep(s.by)
	}
	return claim, err
}

// Called by the clock a worker goes on until there is nothing in any lane, and
// so it does after a pass that took long; called by a nudge it does not.
func TestWorkerLooksUntilThereIsNothing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		nudge      bool
		publishing time.Duration
		want       time.Duration // until the last of eight lanes is sent, each in its turn
	}{
		{"called by the clock", false, 0, 0},
		{"nudged, and the broker is slow", true, 10 * time.Millisecond, 70 * time.Millisecond},
		{"nudged", true, 0, 5 * time.Millisecond}, // the first pause of the sentry
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, topic := newMemory(8), &recorder{answer: func(event.Message) outbox.Receipt { return answerAfter(test.publishing, nil) }}
				publisher := mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour})
				defer run(t, publisher)()
				time.Sleep(10 * time.Hour)
				for lane := range 8 {
					store.add(lane, "a1")
				}
				if test.nudge {
					publisher.Nudge()
				}
				time.Sleep(2 * time.Hour)
				topic.mu.Lock()
				defer topic.mu.Unlock()
				if len(topic.at) != 8 {
					t.Fatalf("%d events were sent, want 8", len(topic.at))
				}
				if got := topic.at[7].Sub(topic.at[0]); got != test.want {
					t.Errorf("the last lane was sent %s after the first, want %s", got, test.want)
				}
			})
		})
	}
}

// Workers that are at work all the time do not put off the look at what nobody
// was nudged about.
func TestSentryLooksThoughOthersWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(8), &recorder{}
		publisher := mustNew(t, store, topic, outbox.Config{PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		store.add(0, "a1")
		publisher.Nudge()
		time.Sleep(time.Millisecond)
		added := time.Now()
		store.add(0, "z1") // of another process, in the lane that was served last
		for i := range 20 {
			store.add(1+i%7, "b"+strconv.Itoa(i+1))
			publisher.Nudge()
			time.Sleep(4 * time.Millisecond)
		}
		topic.mu.Lock()
		defer topic.mu.Unlock()
		if i := slices.Index(topic.sent, "z1"); i < 0 || topic.at[i].Sub(added) > 6*time.Millisecond {
			t.Errorf("z1 was number %d of what was sent, want it within 6ms of %s: %v at %v", i, added, topic.sent, topic.at)
		}
	})
}

// A claim with as many bytes as a pass takes is full, however few its events
// are: the lane is looked at again, and a second worker is woken.
func TestFullOfBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(2), &recorder{answer: func(event.Message) outbox.Receipt { return answerAfter(time.Millisecond, nil) }}
		for _, name := range []string{"a1", "a2", "a3"} {
			store.addPayload(0, name)
		}
		publisher := mustNew(t, store, topic, outbox.Config{Workers: 2, BatchBytes: 3, PollInterval: time.Hour})
		start := time.Now()
		defer run(t, publisher)()
		time.Sleep(time.Hour)
		if sent, last := topic.take(); !slices.Equal(sent, []string{"a1", "a2", "a3"}) || last.Sub(start) != time.Millisecond {
			t.Errorf("sent %q, the last one after %s, want two, and the third after 1ms", sent, last.Sub(start))
		}
		store.addPayload(1, "b1") // so that the other lane was served longer ago
		publisher.Nudge()
		time.Sleep(time.Hour)
		topic.take()
		store.addPayload(0, "a4")
		store.addPayload(0, "a5")
		store.addPayload(1, "b2")
		publisher.Nudge()
		synctest.Wait()
		if sent, _ := topic.take(); len(sent) != 3 {
			t.Errorf("sent at once: %q, want a4, a5 and b2", sent)
		}
	})
}

// A full batch is more than one worker's work: it wakes a second one, which
// does not wait for the first.
func TestFullBatchWakesASecondWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(2), &recorder{answer: func(event.Message) outbox.Receipt { return answerAfter(10*time.Second, nil) }}
		publisher := mustNew(t, store, topic, outbox.Config{Workers: 2, Batch: 3, PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		store.add(0, "a1 a2 a3 a4")
		store.add(1, "b1")
		publisher.Nudge()
		synctest.Wait()
		sent, _ := topic.take()
		slices.Sort(sent)
		if !slices.Equal(sent, []string{"a1", "a2", "a3", "b1"}) {
			t.Errorf("sent at once: %q, want a batch of a and b1", sent)
		}
	})
}

// What other processes write is found by the clock: the first event within
// PollInterval, and one that follows it closely much sooner.
func TestPollingIsFastAfterWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(8), &recorder{}
		defer run(t, mustNew(t, store, topic, outbox.Config{PollInterval: time.Second}))()
		time.Sleep(10 * time.Second)
		for range 20 {
			added := time.Now()
			store.add(0, "a1")
			time.Sleep(time.Second)
			_, found := topic.take()
			if delay := found.Sub(added); found.IsZero() || delay > time.Second {
				t.Fatalf("the first event was found after %s, want at most 1s", delay)
			}
			time.Sleep(2 * time.Second)

			store.add(0, "a2")
			var second time.Time
			for second.IsZero() {
				time.Sleep(time.Millisecond)
				_, second = topic.take()
			}
			time.Sleep(20 * time.Millisecond)
			added = time.Now()
			store.add(1, "b1")
			time.Sleep(time.Second)
			if _, found = topic.take(); found.Sub(added) > 40*time.Millisecond {
				t.Errorf("an event 20 ms after another one was found after %s, want at most 40ms", found.Sub(added))
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// A claim that fails is tried again after a growing pause, and the publisher
// recovers by itself.
func TestFailingClaimBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(8), &recorder{}
		store.add(0, "a1")
		start := time.Now()
		store.fail = func() error {
			if time.Since(start) < time.Minute {
				return errors.New("no database")
			}
			return nil
		}
		stop := run(t, mustNew(t, store, topic, outbox.Config{Workers: 4}))
		time.Sleep(time.Minute)
		// Each worker: 5 ms, doubling up to 5 s, half of which is certain.
		if got := len(store.claimsSince(start)); got < 4*12 || got > 4*(11+24) {
			t.Errorf("%d claims in a minute, want 48 to 140", got)
		}
		time.Sleep(time.Minute)
		stop()
		sent, at := topic.take()
		if !slices.Equal(sent, []string{"a1"}) || at.Sub(start) > 65*time.Second {
			t.Errorf("sent %q, %s after the database came back, want a1 within 5s", sent, at.Sub(start)-time.Minute)
		}
	})
}

// flaky is a broker that is away until some time, and behaves like the client:
// it tries for timeout, and when the broker is back within it, succeeds then.
type flaky struct {
	timeout time.Duration
	back    time.Time

	mu     sync.Mutex
	acks   []string // in the order of the broker
	ackAt  []time.Time
	firsts int // sent before the broker was back
}

func (b *flaky) Publish(m event.Message) outbox.Receipt {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait := max(0, time.Until(b.back))
	if wait > 0 {
		b.firsts++
	}
	if wait > b.timeout {
		return answerAfter(b.timeout, errAway)
	}
	b.acks = append(b.acks, nameOf(m))
	b.ackAt = append(b.ackAt, time.Now().Add(wait))
	return answerAfter(wait, nil)
}

// P-B2: an outage of the broker costs no attempt and sets nothing aside; one
// probe at a time, with one event, asks whether it is over; and then everything
// is published soon, in order.
func TestOutageParksNothing(t *testing.T) {
	t.Parallel()
	const outage = time.Minute
	for _, timeout := range []time.Duration{0, 10 * time.Millisecond, time.Second, 5 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const lanes = 8
				store := newMemory(lanes)
				want := make(map[string][]string)
				for lane := range lanes {
					for _, id := range []string{string(rune('a' + lane)), string(rune('p' + lane))} {
						for version := range strings.FieldsSeq("1 2 3 4 5") {
							store.add(lane, id+version)
							want[id] = append(want[id], id+version)
						}
					}
				}
				start := time.Now()
				topic := &flaky{timeout: timeout, back: start.Add(outage)}
				stop := run(t, mustNew(t, store, topic, outbox.Config{Workers: 4, ProbeInterval: time.Second}))
				time.Sleep(2 * outage)
				stop()

				for _, settlement := range store.settled {
					if len(settlement.Failed)+len(settlement.Aside) > 0 {
						t.Fatalf("settlement %+v, want no failure and nothing aside", settlement)
					}
				}
				opened := start.Add(timeout + time.Nanosecond)
				probes := slices.DeleteFunc(store.claimsSince(opened), func(c memoryClaim) bool { return c.at.Sub(start) >= outage })
				for _, probe := range probes {
					if probe.batch != 1 || probe.busy > 0 {
						t.Errorf("claim of %d events after %s with %d others under way, want single probes", probe.batch, probe.at.Sub(start), probe.busy)
					}
				}
				// A probe takes timeout, and half a second's pause is certain; but the first pauses are shorter.
				if least, most := 5, 5+int(outage/(timeout+time.Second/2)); len(probes) < least || len(probes) > most {
					t.Errorf("%d probes, want %d to %d", len(probes), least, most)
				}
				got := make(map[string][]string)
				for _, name := range topic.acks {
					got[name[:1]] = append(got[name[:1]], name)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("published by aggregate (-want +got):\n%s", diff)
				}
				if took := topic.ackAt[len(topic.ackAt)-1].Sub(start) - outage; took > 2*time.Second {
					t.Errorf("everything was published %s after the outage, want at most 2s", took)
				}
				if left := store.left(); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
			})
		})
	}
}

// One aggregate whose messages get no answer is no outage while others are
// acknowledged: nobody is slowed down to probes.
func TestSlowAggregateIsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory(1)
		topic := &recorder{answer: func(m event.Message) outbox.Receipt {
			if m.AggregateID == "s" {
				return answerAfter(time.Hour, nil)
			}
			return answer(nil)
		}}
		publisher := mustNew(t, store, topic, outbox.Config{Lease: 5 * time.Second, PublishTimeout: 2 * time.Second})
		store.add(0, "s1 a1 s2")
		start := time.Now()
		stop := run(t, publisher)
		for range 120 {
			time.Sleep(time.Second / 2)
			store.add(0, "b1 c1 c2")
			publisher.Nudge()
		}
		stop()
		for _, claim := range store.claimsSince(start) {
			if claim.batch == 1 {
				t.Fatalf("a probe after %s, want full passes", claim.at.Sub(start))
			}
		}
		left := slices.DeleteFunc(store.left(), func(name string) bool { return name == "s1" || name == "s2" })
		if len(left) > 15 { // what came during the last pass
			t.Errorf("%d events of other aggregates are left, want at most those of one pass", len(left))
		}
	})
}

// P-B4: a publisher that is stopped in the middle of a pass publishes what is
// left, settles it, and Run answers nil.
func TestStopPublishesWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := newMemory(1)
		store.add(0, "a1 b1 a2 b2 c1")
		topic := &recorder{answer: func(m event.Message) outbox.Receipt {
			if nameOf(m) == "a2" {
				cancel()
			}
			return answerAfter(time.Second, nil)
		}}
		start := time.Now()
		if err := mustNew(t, store, topic, outbox.Config{}).Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("Run took %s, want the 1s of the broker", took)
		}
		sent, _ := topic.take()
		if diff := cmp.Diff([]string{"a1", "b1", "a2", "b2", "c1"}, sent); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
		if left := store.left(); len(left) > 0 {
			t.Errorf("left = %v, want nothing", left)
		}
	})
}

// A publisher that is stopped waits for the broker no longer than StopTimeout.
// What is not answered by then stays pending, and is no outage.
func TestStopDoesNotWaitForASlowBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		store := newMemory(2)
		store.add(0, "a1 b1 a2")
		store.add(1, "c1")
		topic := &recorder{answer: func(m event.Message) outbox.Receipt {
			if m.AggregateID == "b" {
				return answerAfter(2*time.Second, nil)
			}
			return answerAfter(time.Hour, nil)
		}}
		publisher, log := logged(t, store, topic, outbox.Config{StopTimeout: 1500 * time.Millisecond})
		start := time.Now()
		if err := publisher.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if took := time.Since(start); took != 2500*time.Millisecond {
			t.Errorf("Run took %s, want the 1s before the stop and 1.5s after it", took)
		}
		if diff := cmp.Diff([]string{"a1", "a2", "c1"}, store.left()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		if len(store.settled) != 2 {
			t.Errorf("%d settlements, want one for each lane", len(store.settled))
		}
		if log.Len() > 0 {
			t.Errorf("it logged:\n%s", log)
		}
	})
}

// A backlog without end does not keep a publisher from stopping: it publishes
// for StopTimeout, and not a moment longer.
func TestStopEndsInTheMiddleOfABacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		store := newMemory(4)
		for i := range 4000 {
			store.add(i%4, string(rune('a'+i%4))+"1")
		}
		topic := &recorder{answer: func(event.Message) outbox.Receipt { return answerAfter(100*time.Millisecond, nil) }}
		start := time.Now()
		if err := mustNew(t, store, topic, outbox.Config{Batch: 10, StopTimeout: 1500 * time.Millisecond}).Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if took := time.Since(start); took != 2500*time.Millisecond {
			t.Errorf("Run took %s, want the 1s before the stop and 1.5s after it", took)
		}
		sent, last := topic.take()
		if got := last.Sub(start); got > 2500*time.Millisecond || got < 2*time.Second {
			t.Errorf("the last event was sent after %s, want shortly before 2.5s", got)
		}
		if got := len(sent) + len(store.left()); got < 4000 || got > 4040 {
			t.Errorf("%d events were sent and %d are left, want 4000 in all and at most 40 of them twice", len(sent), len(store.left()))
		}
	})
}

// When the last settlement fails, which means that events will be published
// again, the log has it.
func TestFailedSettlementAtShutdownIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		store := &oneClaim{claim: event.Claim{Token: 7, Events: claimed("a1 a2")}}
		store.settle = func(context.Context, int) (bool, error) { return false, errors.New("no database") }
		publisher, log := logged(t, store, &recorder{answer: func(event.Message) outbox.Receipt { return answerAfter(2*time.Second, nil) }}, outbox.Config{Workers: 1})
		if err := publisher.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if got := log.String(); strings.Count(got, "settle 2 published events: no database") != 1 {
			t.Errorf("it logged %q, want the failed settlement once", got)
		}
	})
}

// A publisher that is stopped with a claim in hand and nothing sent publishes
// it, says nothing, and its lane is free at once.
func TestStopBeforeSendingIsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store, topic := newMemory(1), &recorder{}
		store.add(0, "a1")
		store.fail = func() error {
			cancel()
			return nil
		}
		publisher, log := logged(t, store, topic, outbox.Config{Workers: 1})
		if err := publisher.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if log.Len() > 0 {
			t.Errorf("it logged:\n%s", log)
		}
		if len(store.settled) != 1 {
			t.Errorf("%d settlements, want the one that releases the lane", len(store.settled))
		}
	})
}

// Drain publishes all there is and stops; at an outage, a failed pass or the
// end of ctx it says so.
func TestDrain(t *testing.T) {
	t.Parallel()
	noDatabase := errors.New("no database")
	tests := []struct {
		name   string
		answer error // of the broker, about aggregate b
		fail   error // of claims
		stop   bool  // ctx is done
		want   int
		err    error
	}{
		{name: "all", want: 6},
		{name: "outage", answer: errAway, want: 4, err: errAway},
		{name: "no database", fail: noDatabase, err: noDatabase},
		{name: "stopped", stop: true, err: context.Canceled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMemory(3)
				store.add(0, "a1 a2 a3")
				store.add(1, "b1 b2")
				store.add(2, "c1")
				store.fail = func() error { return test.fail }
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.stop {
					cancel()
				}
				publisher := mustNew(t, store, &recorder{answer: func(m event.Message) outbox.Receipt {
					if m.AggregateID == "b" {
						return answer(test.answer)
					}
					return answer(nil)
				}}, outbox.Config{Batch: 2})
				got, err := publisher.Drain(ctx)
				if got != test.want && test.name != "outage" || !errors.Is(err, test.err) {
					t.Errorf("Drain() = %d, %v, want %d, %v", got, err, test.want, test.err)
				}
			})
		})
	}
}
