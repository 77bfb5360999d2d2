package outbox_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/outbox"
)

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
