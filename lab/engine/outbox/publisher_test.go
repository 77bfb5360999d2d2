package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// flaky is a broker that is unavailable until some time, and behaves like the client:
// it tries for timeout, and succeeds if the broker is back by then.
type flaky struct {
	timeout time.Duration
	back    time.Time

	mu     sync.Mutex
	acks   []string // in the order of the broker
	ackAt  []time.Time
	firsts int // sent before the broker was back
}

func (b *flaky) Publish(m envelope.Message) outbox.Receipt {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait := max(0, time.Until(b.back))
	if wait > 0 {
		b.firsts++
	}
	if wait > b.timeout {
		return respondedAfter(b.timeout, errUnavailable)
	}
	b.acks = append(b.acks, nameOf(m))
	b.ackAt = append(b.ackAt, time.Now().Add(wait))
	return respondedAfter(wait, nil)
}

// An outage of the broker costs no attempt and defers nothing. One probe at a
// time, with one event, checks whether it is over. Then everything is published
// soon, in order.
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
				stop := run(t, mustNew(t, store, topic, outbox.Config{Workers: 4}))
				time.Sleep(2 * outage)
				stop()

				for _, settlement := range store.settled {
					if len(settlement.Refused)+len(settlement.Defer) > 0 {
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
				// A probe takes timeout, and the pause after it at least half a second, except the first pauses.
				if least, most := 5, 5+int(outage/(timeout+time.Second/2)); len(probes) < least || len(probes) > most {
					t.Errorf("%d probes, want %d to %d", len(probes), least, most)
				}
				got := make(map[string][]string)
				for _, name := range topic.acks {
					got[name[:1]] = append(got[name[:1]], name)
				}
				same(t, "published by aggregate", want, got)
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
		topic := &recorder{answer: func(m envelope.Message) outbox.Receipt {
			if m.AggregateID == "s" {
				return respondedAfter(time.Hour, nil)
			}
			return responded(nil)
		}}
		publisher := mustNew(t, store, topic, outbox.Config{Lease: 5 * time.Second, PublishTimeout: 2 * time.Second})
		store.add(0, "s1 a1 s2")
		start := time.Now()
		stop := run(t, publisher)
		for range 120 {
			time.Sleep(time.Second / 2)
			store.add(0, "b1 c1 c2")
			publisher.Wake()
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

// A publisher that is stopped waits for the broker no longer than StopTimeout.
// An event without an answer stays pending then, and does not count as an outage.
func TestStopDoesNotWaitForASlowBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		store := newMemory(2)
		store.add(0, "a1 b1 a2")
		store.add(1, "c1")
		topic := &recorder{answer: func(m envelope.Message) outbox.Receipt {
			if m.AggregateID == "b" {
				return respondedAfter(2*time.Second, nil)
			}
			return respondedAfter(time.Hour, nil)
		}}
		publisher, log := logged(t, store, topic, outbox.Config{})
		start := time.Now()
		if err := publisher.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if took := time.Since(start); took != 2500*time.Millisecond {
			t.Errorf("Run took %s, want the 1s before the stop and 1.5s after it", took)
		}
		same(t, "left", []string{"a1", "a2", "c1"}, store.left())
		if len(store.settled) != 1 {
			t.Errorf("%d settlements, want one for both lanes", len(store.settled))
		}
		if log.Len() > 0 {
			t.Errorf("it logged:\n%s", log)
		}
	})
}

// The log says when the last settlement fails, as events will be published again.
func TestFailedSettlementAtShutdownIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 7}, Events: claimed("a1 a2")}}
		store.settle = func(context.Context, int) (bool, error) { return false, errors.New("no database") }
		publisher, log := logged(t, store, &recorder{answer: func(envelope.Message) outbox.Receipt { return respondedAfter(2*time.Second, nil) }}, outbox.Config{Workers: 1})
		if err := publisher.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if got := log.String(); strings.Count(got, "settle published events: no database") != 1 {
			t.Errorf("it logged %q, want the failed settlement once", got)
		}
	})
}

// A publisher that is stopped after a claim, before it sends anything, settles
// the claim, so that the lane is free at once. It logs nothing.
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
