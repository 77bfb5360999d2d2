package outbox_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// A wake-up is never lost and never blocks: before Run, while all workers are
// busy, and many at once.
func TestWakeUpIsNeverLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(2), &recorder{answer: func(envelope.Message) outbox.Receipt { return respondedAfter(time.Second, nil) }}
		publisher := mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour})
		for range 100 {
			publisher.Wake()
		}
		defer run(t, publisher)()
		time.Sleep(10 * time.Hour)
		store.add(0, "a1")
		publisher.Wake()
		time.Sleep(time.Second / 2) // the one worker waits for the broker
		store.add(1, "b1")
		publisher.Wake()
		time.Sleep(5 * time.Second)
		if sent, _ := topic.take(); !slices.Equal(sent, []string{"a1", "b1"}) {
			t.Errorf("sent %q, want a1 and b1", sent)
		}
	})
}

// A pass after a wake-up may leave an event whose result is unknown, or an aggregate that
// has recovered. The next poll, after the first pause, takes it.
func TestPassThatLeavesSomething(t *testing.T) {
	t.Parallel()
	for _, left := range []string{"unanswered", "recovered"} {
		synctest.Test(t, func(t *testing.T) {
			fails := left == "unanswered"
			topic := &recorder{answer: func(m envelope.Message) outbox.Receipt {
				if fails && m.AggregateID == "a" {
					fails = false
					return responded(errUnavailable)
				}
				return responded(nil)
			}}
			store := &recovering{memory: newMemory(8), recovered: left == "recovered"}
			publisher := mustNew(t, store, topic, outbox.Config{Workers: 1, PollInterval: time.Hour})
			defer run(t, publisher)()
			time.Sleep(10 * time.Hour)
			start := time.Now()
			store.add(0, "a1 b1")
			publisher.Wake()
			time.Sleep(5 * time.Millisecond)
			synctest.Wait()
			claims := store.claimsSince(start)
			if len(claims) < 2 || len(store.left()) > 0 {
				t.Errorf("%s: claims %+v leave %q, want two, which leave nothing", left, claims, store.left())
			}
		})
	}
}

// recovering is a store whose first claim has an event of an aggregate that was blocked.
type recovering struct {
	*memory
	recovered bool // the next claim is that one
}

func (s *recovering) ClaimEvents(ctx context.Context, limits outbox.Limits) (outbox.Claim, error) {
	claim, err := s.memory.ClaimEvents(ctx, limits)
	if claim.Token != 0 && s.recovered {
		claim.Events[0].Deferred, s.recovered = true, false
	}
	return claim, err
}

// A claim with as many bytes as a pass takes is full, however few its events
// are: there is soon a claim of the rest.
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
		publisher.Wake()
		time.Sleep(time.Minute)
		if sent, last := topic.take(); !slices.Equal(sent, []string{"a1", "a2", "a3"}) || last.Sub(start) > 5*time.Millisecond {
			t.Errorf("sent %q, the last one after %s, want two, and the third after 5ms at most", sent, last.Sub(start))
		}
	})
}
