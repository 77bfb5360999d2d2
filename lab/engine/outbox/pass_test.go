package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// oneClaim is a store with one claim to give; it keeps the settlements.
type oneClaim struct {
	claim   outbox.Claim
	settle  func(ctx context.Context, attempt int) (held bool, err error) // nil: it holds
	settled []outbox.Settlement
}

func (s *oneClaim) ClaimEvents(context.Context, outbox.Limits) (outbox.Claim, error) {
	claim := s.claim
	s.claim = outbox.Claim{}
	return claim, nil
}

func (s *oneClaim) SettleClaim(ctx context.Context, settlement outbox.Settlement) (bool, error) {
	s.settled = append(s.settled, settlement)
	if s.settle == nil {
		return true, nil
	}
	return s.settle(ctx, len(s.settled))
}

// once makes a pass.
func once(t *testing.T, publisher *outbox.Publisher) {
	t.Helper()
	_, err := publisher.RunOnce(t.Context(), 10)
	must(t, err)
}

// An empty outbox is no work: nothing is settled.
func TestPassWithoutClaim(t *testing.T) {
	t.Parallel()
	store := &oneClaim{}
	result, err := mustNew(t, store, nil, outbox.Config{}).RunOnce(t.Context(), 10)
	if result.Claimed || err != nil || len(store.settled) > 0 {
		t.Errorf("RunOnce() = %+v, %v and %d settlements, want nothing", result, err, len(store.settled))
	}
}

// The pause after a refusal is random, in the upper half of its range. The
// range doubles with each attempt, up to ten minutes. After MaxAttempts the event
// is parked.
func TestRefusedEventIsRetriedLaterAndLater(t *testing.T) {
	t.Parallel()
	const maxAttempts, draws = 13, 200
	cfg := outbox.Config{MaxAttempts: maxAttempts}
	for attempts, seconds := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600} {
		longest := time.Duration(seconds) * time.Second
		seen := make(map[time.Duration]bool)
		for range draws {
			failure := refuse(t, cfg, attempts)
			if failure.RetryIn < longest/2 || failure.RetryIn > longest {
				t.Fatalf("after %d attempts: %+v, want a retry in %s to %s", attempts, failure, longest/2, longest)
			}
			seen[failure.RetryIn] = true
		}
		if len(seen) < draws/2 {
			t.Errorf("after %d attempts: %d different pauses in %d draws, want them at random", attempts, len(seen), draws)
		}
		if spread := slices.Max(slices.Collect(maps.Keys(seen))) - slices.Min(slices.Collect(maps.Keys(seen))); spread < longest/4 {
			t.Errorf("after %d attempts: the pauses spread over %s, want most of %s", attempts, spread, longest/2)
		}
	}
	for _, attempts := range []int{maxAttempts - 1, maxAttempts, 1000} {
		if failure := refuse(t, cfg, attempts); failure.RetryIn != 0 {
			t.Errorf("after %d attempts: %+v, want it parked", attempts, failure)
		}
	}
	// The first attempt is made with other events, which may be the reason. The second is made alone.
	for attempts, want := range []bool{false, true} {
		if failure := refuse(t, outbox.Config{MaxAttempts: 1}, attempts); (failure.RetryIn == 0) != want {
			t.Errorf("with one attempt, after %d: %+v, want it parked: %t", attempts, failure, want)
		}
	}
}

// refuse returns the refusal of an event that had this many attempts before.
func refuse(t *testing.T, cfg outbox.Config, attempts int) outbox.Refusal {
	t.Helper()
	events := claimed("a1")
	events[0].Deferred, events[0].Attempts = attempts > 0, attempts
	store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 1}, Events: events}}
	publisher := mustNew(t, store, broker(func(envelope.Message) outbox.Receipt { return responded(errRefused) }), cfg)
	once(t, publisher)
	return store.settled[0].Refused[0]
}

// Events whose lease was lost before the settlement do not count as published.
func TestLostLeaseIsNoSuccess(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{true, false} {
		store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 7}, Events: claimed("a1 a2 b1")}}
		store.settle = func(context.Context, int) (bool, error) { return held, nil }
		publisher, reader := metered(t, store, &recorder{}, outbox.Config{})
		if _, err := publisher.RunOnce(t.Context(), 10); err != nil {
			t.Errorf("RunOnce() = %v, want nil", err)
		}
		if len(store.settled) != 1 {
			t.Errorf("settled %d times, want once: an answer is an answer", len(store.settled))
		}
		want := map[string]int64{"published": 3}
		if !held {
			want = map[string]int64{"unsettled": 3}
		}
		same(t, fmt.Sprintf("held = %t: counters", held), want, counters(t, reader))
	}
}

// counters returns the counters that are not 0, by outcome if they have one.
func counters(t *testing.T, reader metric.Reader) map[string]int64 {
	t.Helper()
	counters := make(map[string]int64)
	for _, m := range measured(t, reader) {
		sum, ok := m.Data.(metricdata.Sum[int64])
		if !ok {
			continue
		}
		for _, point := range sum.DataPoints {
			name := m.Name
			if outcome, ok := point.Attributes.Value("outcome"); ok {
				name = outcome.AsString()
			}
			if point.Value != 0 {
				counters[name] += point.Value
			}
		}
	}
	return counters
}

// While the database is unavailable the settlement is tried again, and given up
// before the lease ends.
func TestSettlementIsRetriedWithinTheLease(t *testing.T) {
	t.Parallel()
	cfg := outbox.Config{Lease: 30 * time.Second, PublishTimeout: 10 * time.Second}
	tests := []struct {
		name     string
		away     time.Duration
		hangs    bool // the database does not answer at all
		wantErr  bool
		from, to time.Duration
	}{
		{name: "away for 10 s", away: 10 * time.Second, from: 10 * time.Second, to: 11 * time.Second},
		{name: "silent for 10 s", away: 10 * time.Second, hangs: true, from: 10 * time.Second, to: 13 * time.Second},
		{name: "away for ever", away: time.Hour, wantErr: true, from: 28 * time.Second, to: 30 * time.Second},
		// The last attempt begins before the lease ends.
		{name: "silent for ever", away: time.Hour, hangs: true, wantErr: true, from: 28 * time.Second, to: 38 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 7}, Events: claimed("a1")}}
				store.settle = func(ctx context.Context, _ int) (bool, error) {
					if time.Since(start) >= test.away {
						return true, nil
					}
					if test.hangs {
						<-ctx.Done()
					}
					return false, errors.New("no database")
				}
				publisher := mustNew(t, store, broker(func(envelope.Message) outbox.Receipt { return responded(nil) }), cfg)
				_, err := publisher.RunOnce(t.Context(), 10)
				if (err != nil) != test.wantErr {
					t.Errorf("RunOnce() = %v, want an error: %t", err, test.wantErr)
				}
				if took := time.Since(start); took < test.from || took > test.to {
					t.Errorf("the settlement took %s, want %s to %s", took, test.from, test.to)
				}
				if n := len(store.settled); n > 60 {
					t.Errorf("%d attempts, want at most one in half a second", n)
				}
			})
		})
	}
}

// If a slow database cannot settle within the first attempt, a later attempt has more
// time. Otherwise the events would be published again for as long as the database is
// slow.
func TestSettlementOfASlowDatabase(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{900 * time.Millisecond, 1100 * time.Millisecond, 4900 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 7}, Events: claimed("a1")}}
				store.settle = func(ctx context.Context, _ int) (bool, error) {
					select {
					case <-time.After(takes):
						return true, nil
					case <-ctx.Done():
						return false, ctx.Err()
					}
				}
				publisher := mustNew(t, store, broker(func(envelope.Message) outbox.Receipt { return responded(nil) }), outbox.Config{})
				if _, err := publisher.RunOnce(t.Context(), 10); err != nil {
					t.Errorf("RunOnce() = %v after %d attempts, want nil", err, len(store.settled))
				}
			})
		})
	}
}

// When the process stops, events that the broker has are settled under a live
// context. If the database is unavailable, it is tried only once.
func TestSettlementAtShutdown(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		stop time.Duration // when ctx ends; the broker answers after a second
		slow bool          // there is a second event, and the broker does not answer it in time
		away bool          // the database does not answer
	}{
		{name: "stopped before the settlement", stop: 1500 * time.Millisecond, slow: true},
		{name: "stopped before the settlement, no database", stop: 1500 * time.Millisecond, slow: true, away: true},
		{name: "stopped while the settlement is retried, no database", stop: 5 * time.Second, away: true},
		{name: "stopped while a long attempt is made, no database", stop: 8 * time.Second, away: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), test.stop)
				defer cancel()
				events := "a1"
				if test.slow {
					events = "a1 b1"
				}
				store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 7}, Events: claimed(events)}}
				store.settle = func(ctx context.Context, _ int) (bool, error) {
					if ctx.Err() != nil {
						t.Errorf("the settlement's context = %v, want a live one", ctx.Err())
					}
					if test.away {
						<-ctx.Done()
					}
					return true, ctx.Err()
				}
				publisher := mustNew(t, store, broker(func(m envelope.Message) outbox.Receipt {
					if nameOf(m) == "b1" {
						return respondedAfter(time.Hour, nil)
					}
					return respondedAfter(time.Second, nil)
				}), outbox.Config{})
				_, err := publisher.RunOnce(ctx, 10)
				if (err != nil) != test.away {
					t.Errorf("RunOnce() = %v, want an error: %t", err, test.away)
				}
				if len(store.settled) == 0 || !slices.Equal(store.settled[0].Published, []int64{1}) {
					t.Errorf("settlements = %+v, want event 1 done", store.settled)
				}
				if took, most := time.Since(start), max(test.stop, time.Second)+2*time.Second; took > most {
					t.Errorf("RunOnce took %s, want at most %s", took, most)
				}
			})
		})
	}
}

// A process that is suspended during a pass, for longer than the pass may take,
// sends nothing more when it resumes.
func TestNothingIsSentAfterTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 7}, Events: claimed("a1 b1 a2 b2 c1")}}
		var sent []string
		publisher := mustNew(t, store, broker(func(m envelope.Message) outbox.Receipt {
			sent = append(sent, nameOf(m))
			if nameOf(m) == "b1" {
				time.Sleep(time.Minute)
			}
			return responded(nil)
		}), outbox.Config{})
		result, err := publisher.RunOnce(t.Context(), 10)
		if err != nil {
			t.Errorf("RunOnce() = %v, want nil", err)
		}
		same(t, "sent", []string{"a1", "b1"}, sent)
		if result.Published != 2 || result.Unknown != 3 {
			t.Errorf("result = %+v, want what was sent as published, the rest as unknown", result)
		}
	})
}

// When ctx ends in the middle of handing over, nothing more is handed
// over, and what was acknowledged by then is settled.
func TestNothingIsSentAfterTheEnd(t *testing.T) {
	t.Parallel()
	store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 7}, Events: claimed("a1 b1 a2 b2 c1")}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sent []string
	publisher := mustNew(t, store, broker(func(m envelope.Message) outbox.Receipt {
		sent = append(sent, nameOf(m))
		if nameOf(m) == "a2" {
			cancel()
		}
		return responded(nil)
	}), outbox.Config{})
	result, err := publisher.RunOnce(ctx, 10)
	if err != nil || result.Published != 3 || result.Unknown != 2 {
		t.Errorf("RunOnce() = %+v, %v, want 3 published and 2 unknown", result, err)
	}
	same(t, "sent", []string{"a1", "b1", "a2"}, sent)
	want := []outbox.Settlement{{Lease: outbox.Lease{Token: 7}, Published: []int64{1, 2, 3}}}
	same(t, "settlements", want, store.settled, cmpopts.EquateEmpty())
}

// A database that does not answer the claim holds a worker no longer
// than a pass may take.
func TestClaimHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		publisher := mustNew(t, silentStore{}, nil, outbox.Config{Lease: 30 * time.Second, PublishTimeout: 12 * time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := publisher.RunOnce(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("RunOnce() = %v, want the deadline's error", err)
		}
		if took := time.Since(start); took != 12*time.Second {
			t.Errorf("the claim took %s, want 12s", took)
		}
	})
}

type silentStore struct{ outbox.Store }

func (silentStore) ClaimEvents(ctx context.Context, _ outbox.Limits) (outbox.Claim, error) {
	<-ctx.Done()
	return outbox.Claim{}, ctx.Err()
}

// The events of a pass are under way together: one round trip for all.
func TestPassPublishesTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 7}, Events: claimed("a1 a2 a3 b1 b2 c1 d1")}}
		publisher := mustNew(t, store, broker(func(envelope.Message) outbox.Receipt { return respondedAfter(10*time.Millisecond, nil) }), outbox.Config{})
		once(t, publisher)
		if took := time.Since(start); took != 10*time.Millisecond {
			t.Errorf("7 events took %s, want 10ms", took)
		}
	})
}
