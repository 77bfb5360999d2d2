package outbox_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/envelope"
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

// A wake-up wakes a worker at once, and one worker only.
func TestWakeUpIsHeardAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(8), &recorder{}
		publisher := mustNew(t, store, topic, outbox.Config{PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(5 * time.Hour)
		for range 10 { // whoever of the workers takes it
			start := time.Now()
			store.add(0, "a1 a2 b1")
			publisher.Wake(letter("a"))
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

// A wake-up is never lost and never blocks: before Run, while all workers are
// busy, and many at once.
func TestWakeUpIsNeverLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(2), &recorder{answer: func(envelope.Message) outbox.Receipt { return answerAfter(time.Second, nil) }}
		publisher := mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour})
		for range 100 {
			publisher.Wake(letter("a"))
		}
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		store.add(0, "a1")
		publisher.Wake(letter("a"))
		time.Sleep(time.Second / 2) // the one worker waits for the broker
		store.add(1, "b1")
		publisher.Wake(letter("b"))
		time.Sleep(5 * time.Second)
		if sent, _ := topic.take(); !slices.Equal(sent, []string{"a1", "b1"}) {
			t.Errorf("sent %q, want a1 and b1", sent)
		}
	})
}

// A wake-up about an event of a lane that another worker has is not lost, though
// the worker that it wakes finds nothing: who has the lane looks again.
func TestWakeUpAboutALeasedLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Shorter than the first pause of the clock, which would find it as well.
		const publishing = 3 * time.Millisecond
		store, topic := newMemory(8), &recorder{answer: func(envelope.Message) outbox.Receipt { return answerAfter(publishing, nil) }}
		publisher := mustNew(t, store, topic, outbox.Config{PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		for range 10 {
			start := time.Now()
			store.add(0, "a1")
			publisher.Wake(letter("a"))
			time.Sleep(time.Millisecond)
			store.add(0, "a2")
			publisher.Wake(letter("a"))
			time.Sleep(time.Hour)
			if sent, last := topic.take(); !slices.Equal(sent, []string{"a1", "a2"}) || last.Sub(start) != publishing {
				t.Errorf("sent %q, the last one after %s, want a1, and a2 after %s", sent, last.Sub(start), publishing)
			}
		}
	})
}

// A wake-up about an event of a lane that another process has makes the clock
// start again, so that it does not wait for PollInterval.
func TestWakeUpAboutALaneOfAnotherProcess(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			store, topic := newMemory(8), &recorder{}
			publisher := mustNew(t, store, topic, outbox.Config{Workers: workers, PollInterval: time.Hour})
			defer run(t, publisher)()
			time.Sleep(10 * time.Hour)
			store.add(0, "a1")
			claim, err := store.ClaimEvents(t.Context(), outbox.AnyLane, 1, 1, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			store.add(0, "a2")
			publisher.Wake(letter("a"))
			time.Sleep(time.Millisecond)
			if _, err := store.SettleClaim(t.Context(), outbox.Settlement{Lane: claim.Lane, Token: claim.Token, Published: []int64{claim.Events[0].Seq}}); err != nil {
				t.Fatal(err)
			}
			settled := time.Now()
			time.Sleep(time.Minute)
			if sent, last := topic.take(); !slices.Equal(sent, []string{"a2"}) || last.Sub(settled) > 5*time.Millisecond {
				t.Errorf("%d workers: sent %q, %s after the other process had settled, want a2 after 5ms at most", workers, sent, last.Sub(settled))
			}
		})
	}
}

// slowEmpty takes a while to say that there is nothing.
type slowEmpty struct {
	*memory
	by time.Duration
}

func (s slowEmpty) ClaimEvents(ctx context.Context, lane int16, batch int, maxBytes int64, lease time.Duration) (outbox.Claim, error) {
	claim, err := s.memory.ClaimEvents(ctx, lane, batch, maxBytes, lease)
	if claim.Token == 0 {
		time.Sleep(s.by)
	}
	return claim, err
}

// Called by the clock a worker goes on until there is nothing in any lane.
func TestWorkerLooksUntilThereIsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(8), &recorder{}
		defer run(t, mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour}))()
		time.Sleep(10 * time.Hour)
		for lane := range 8 {
			store.add(lane, "a1")
		}
		time.Sleep(2 * time.Hour)
		topic.mu.Lock()
		defer topic.mu.Unlock()
		if len(topic.at) != 8 {
			t.Fatalf("%d events were sent, want 8", len(topic.at))
		}
		if got := topic.at[7].Sub(topic.at[0]); got != 0 {
			t.Errorf("the last lane was sent %s after the first, want at once", got)
		}
	})
}

// Wake-ups that never cease are each about a lane, and do not put off the look at
// what nobody had a wake-up about.
func TestAllLanesArePolledThoughWakeUpsNeverCease(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			const poll = 50 * time.Millisecond
			store, topic := newMemory(8), &recorder{}
			publisher := mustNew(t, store, topic, outbox.Config{Workers: workers, PollInterval: poll})
			defer run(t, publisher)()
			time.Sleep(time.Second)
			start := time.Now()
			store.add(0, "z1") // of another process
			const wakeUps = 200
			for i := range wakeUps {
				store.add(1+i%7, "b"+strconv.Itoa(i+1))
				publisher.Wake(letter("b"))
				time.Sleep(1013 * time.Microsecond) // never when the clock rings
			}
			topic.mu.Lock()
			defer topic.mu.Unlock()
			if i := slices.Index(topic.sent, "z1"); i < 0 || topic.at[i].Sub(start) > poll || len(topic.sent) != wakeUps+1 {
				t.Errorf("%d workers: of %d events z1 was number %d, want it within %s: %v", workers, len(topic.sent), i, poll, topic.at)
			}
			all := 0
			for _, claim := range store.claimsSince(start) {
				if claim.lane == outbox.AnyLane {
					all++
				}
			}
			if all > 12 { // z1 and none, after 5, 10, 20, 40 ms, and every 50 ms
				t.Errorf("%d workers: %d looks at all lanes, want few: the others are about one", workers, all)
			}
		})
	}
}

// A wake-up that comes while every worker is busy gets a pass when one is free.
func TestWakeUpWaitsForAWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Shorter than the first pause of the clock, which would find it as well.
		const publishing = time.Millisecond
		store, topic := newMemory(8), &recorder{answer: func(envelope.Message) outbox.Receipt { return answerAfter(publishing, nil) }}
		publisher := mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		start := time.Now()
		for lane, name := range []string{"a1", "b1", "c1"} {
			store.add(lane, name)
			publisher.Wake(letter(name[:1]))
		}
		time.Sleep(time.Hour)
		if sent, last := topic.take(); len(sent) != 3 || last.Sub(start) != 2*publishing {
			t.Errorf("sent %q, the last one after %s, want all three after %s", sent, last.Sub(start), 2*publishing)
		}
	})
}

// The last look of a worker is at all lanes, also when it stops in the middle
// of a look at one that has nothing.
func TestStopLooksAtAllLanes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := slowEmpty{memory: newMemory(8), by: 2 * time.Millisecond}, &recorder{}
		publisher := mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour})
		stop := run(t, publisher)
		time.Sleep(10 * time.Hour)
		store.add(0, "a1")
		publisher.Wake(letter("a"))
		time.Sleep(time.Millisecond)
		publisher.Wake(letter("a"))
		time.Sleep(time.Millisecond)
		store.add(3, "z1") // of another process
		stop()
		if sent, _ := topic.take(); !slices.Equal(sent, []string{"a1", "z1"}) {
			t.Errorf("sent %q, want a1 and z1", sent)
		}
		if claims := store.claimsSince(time.Time{}); !slices.ContainsFunc(claims, func(c memoryClaim) bool { return c.lane == outbox.Lane(letter("a")) }) {
			t.Error("no claim was about a, want one: the test does not test what it should")
		}
	})
}

// A pass after a wake-up may leave an event without an answer of the broker, or an
// aggregate that has recovered. It is tried again after the timer's first pause.
func TestPassThatLeavesSomething(t *testing.T) {
	t.Parallel()
	for _, left := range []string{"unanswered", "recovered"} {
		synctest.Test(t, func(t *testing.T) {
			fails := left == "unanswered"
			topic := &recorder{answer: func(m envelope.Message) outbox.Receipt {
				if fails && m.AggregateID == "a" {
					fails = false
					return answer(errAway)
				}
				return answer(nil)
			}}
			store := &recovering{memory: newMemory(8), recovered: left == "recovered"}
			publisher := mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour})
			defer run(t, publisher)()
			time.Sleep(10 * time.Hour)
			start := time.Now()
			store.add(0, "a1 b1")
			publisher.Wake(letter("a"))
			time.Sleep(5 * time.Millisecond)
			synctest.Wait()
			claims := store.claimsSince(start)
			if len(claims) < 2 || claims[0].lane != outbox.Lane(letter("a")) || claims[1].lane != outbox.AnyLane || len(store.left()) > 0 {
				t.Errorf("%s: claims %+v leave %q, want one about a, and one of any lane, which leaves nothing", left, claims, store.left())
			}
		})
	}
}

// recovering is a store whose first claim has an event of an aggregate that was blocked.
type recovering struct {
	*memory
	recovered bool // the next claim is that one
}

func (s *recovering) ClaimEvents(ctx context.Context, lane int16, batch int, maxBytes int64, lease time.Duration) (outbox.Claim, error) {
	claim, err := s.memory.ClaimEvents(ctx, lane, batch, maxBytes, lease)
	if claim.Token != 0 && s.recovered {
		claim.Events[0].Deferred, s.recovered = true, false
	}
	return claim, err
}

// A claim with as many bytes as a pass takes is full, however few its events
// are: there is soon a poll for the rest.
func TestFullOfBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(2), &recorder{}
		publisher := mustNew(t, store, topic, outbox.Config{BatchBytes: 3, PollInterval: time.Hour})
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		for _, name := range []string{"a1", "a2", "a3"} {
			store.addPayload(0, name)
		}
		start := time.Now()
		publisher.Wake(letter("a"))
		time.Sleep(time.Minute)
		if sent, last := topic.take(); !slices.Equal(sent, []string{"a1", "a2", "a3"}) || last.Sub(start) != 5*time.Millisecond {
			t.Errorf("sent %q, the last one after %s, want two, and the third after 5ms", sent, last.Sub(start))
		}
	})
}

// The timer finds events of other processes: the first event within PollInterval,
// and one that follows it closely much sooner.
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
