package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

// A thousand messages at once are applied in few transactions, each of a batch.
func TestReceiverBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		var transactions atomic.Int64
		store.before = func(context.Context, []note) error {
			transactions.Add(1)
			time.Sleep(2 * time.Millisecond) // a commit
			return nil
		}
		project(t, consumer.Config{}, store, messages(1000), time.Second)
		if versions, _, _ := store.state(); len(versions) != 1000 || transactions.Load() > 20 {
			t.Errorf("%d notes in %d transactions, want 1000 in at most 20", len(versions), transactions.Load())
		}
	})
}

// A lone message waits for others for two milliseconds and no longer.
func TestReceiverDoesNotWaitForFullBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, start := newStore(), time.Now()
		var waited time.Duration
		store.before = func(context.Context, []note) error {
			waited = time.Since(start)
			return nil
		}
		project(t, consumer.Config{}, store, messages(1), time.Second)
		if waited != 2*time.Millisecond {
			t.Errorf("the message waited %s, want 2ms", waited)
		}
	})
}

// While all workers are busy the next batch fills: the second transaction
// takes all that came during the first, however late.
func TestReceiverFillsBatchWhileCommitting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes []int
		store := newStore()
		store.before = func(_ context.Context, events []note) error {
			sizes = append(sizes, len(events))
			time.Sleep(time.Second)
			return nil
		}
		source := slowSource{fakeSource: messages(30), pause: 20 * time.Millisecond}
		project(t, consumer.Config{Workers: 1}, store, source, 5*time.Second)
		pgtest.Same(t, "sizes of the transactions", []int{1, 29}, sizes)
	})
}

// A batch that times out again and again is split, whichever side times out first.
// An event whose statement takes too long holds up its key, and little else, until
// the database is faster. It is not quarantined.
func TestReceiverTakesASlowBatchApart(t *testing.T) {
	for name, patience := range map[string]time.Duration{"ours": time.Hour, "the database's": 8 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, start := messages(100), time.Now()
				slow := all[17].ID
				store := newStore()
				var others time.Duration // when all of them were applied
				applied, alone := 0, 0
				store.before = func(ctx context.Context, events []note) error {
					if slices.ContainsFunc(events, func(e note) bool { return e.ID.String() == slow }) && time.Since(start) < 10*time.Minute {
						if len(events) == 1 {
							alone++
						}
						select {
						case <-ctx.Done():
							return ctx.Err()
						case <-time.After(patience):
							return fmt.Errorf("%w: statement timeout: %w", envelope.ErrUnavailable, context.DeadlineExceeded)
						}
					}
					if applied += len(events); applied == 99 {
						others = time.Since(start)
					}
					return nil
				}
				read := store.read(t)
				project(t, consumer.Config{Workers: 1, MaxAttempts: 2}, store, all, 20*time.Minute)
				pgtest.Same(t, "consumer.events", map[string]int64{"applied": 100}, read.counter("consumer.events"))
				if alone < 5 || alone > 40 {
					t.Errorf("the event was tried %d times alone in 10 minutes of 8 to 10 s each, want pauses that grow to a minute", alone)
				}
				if others == 0 || others > 2*time.Minute {
					t.Errorf("the others were applied after %s, want at most 2 minutes", others)
				}
			})
		})
	}
}

// A refused message is tried again alone, also if others have come meanwhile.
func TestReceiverRetriesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := slowSource{fakeSource: messages(200), pause: 800 * time.Microsecond}
		poison := source.fakeSource[1]
		var sizes []int
		store := newStore()
		store.before = func(_ context.Context, events []note) error {
			for _, e := range events {
				if e.ID.String() == poison.ID {
					sizes = append(sizes, len(events))
					return errors.New("refused")
				}
			}
			return nil
		}
		project(t, consumer.Config{}, store, source, 10*time.Second)
		pgtest.Same(t, "sizes of the refused transactions", []int{3, 1, 1, 1, 1, 1}, sizes)
	})
}

// A quarantine that refuses is tried again until it takes the message, and
// holds up nothing else.
func TestReceiverDoesNotLoseWhatItCannotQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := messages(1)[0]
		broken.Data = nil
		broken.Attributes = map[string]string{envelope.AttrSchemaVersion: "1", "a\x00": "b\x00"}
		store := newStore()
		refusals := 0
		store.refuse = func(m envelope.Quarantined) error {
			want := envelope.Quarantined{
				MessageID: broken.ID, OrderingKey: broken.Key, Attributes: broken.Attributes,
				Payload: broken.Data, Reason: m.Reason, PublishTime: broken.PublishTime,
			}
			pgtest.Same(t, "Quarantine got", want, m)
			if refusals++; refusals < 20 {
				return errors.New("no such table")
			}
			return nil
		}
		read := store.read(t)
		project(t, consumer.Config{Workers: 1}, store, append(messages(10), broken), 10*time.Minute)
		if _, _, got := store.state(); len(got) != 1 {
			t.Errorf("quarantine = %v, want one message", got)
		}
		pgtest.Same(t, "consumer.events", map[string]int64{"applied": 10, "quarantined": 1}, read.counter("consumer.events"))
	})
}
