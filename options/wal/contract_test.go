package wal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// Both stores keep what a publisher relies on: the order of an aggregate, the lease of a lane with its end, and the way of a refused event and
// of those behind it.
func TestStoresKeepOneContract(t *testing.T) {
	for name, newStore := range map[string]func(*service) outbox.Store{
		lanes: func(s *service) outbox.Store { return pg.NewOutbox(s.pool) },
		wal: func(s *service) outbox.Store {
			s.must(wal)
			r, err := newReader(s.Context(), &app.Process{CommandPool: s.pool, Log: discard}, pg.NewOutbox(s.pool))
			pgtest.Must(s, err)
			r.wake = func() {}
			s.background(func(ctx context.Context) { _ = r.run(ctx) })
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := contract{service: newService(t)}
			c.store = newStore(c.service)
			c.append("a", 1)
			c.append("a", 2)
			c.append("b", 1)
			first := c.claims("a1 a2 b1", time.Hour)
			if again := c.claim(time.Hour); again.Token != 0 {
				t.Errorf("a second claim has %q, and the first is not settled", eventsOf(again))
			}
			c.settles(first, "a1")
			c.append("a", 3)
			c.append("b", 2)
			c.settles(c.claims("a3! b2", time.Hour), "")
			pgtest.Execute(t, c.pool, "UPDATE video_catalog.outbox_blocked SET next_retry_at = now()")
			c.settles(c.claims("a1/1", time.Hour), "")
			c.settles(c.claims("a2/0 a3/0", time.Hour), "")
			c.append("a", 4)
			late := c.claims("a4", 50*time.Millisecond)
			next := c.claims("a4", time.Hour)
			if held, err := c.store.SettleClaim(t.Context(), pgtest.Settlement(late, func(outbox.Claimed) bool { return false })); held || err != nil {
				t.Errorf("SettleClaim() of a claim whose lease has ended = %t, %v, want false", held, err)
			}
			c.settles(outbox.Claim{Lease: next.Lease}, "") // a4 is still there
			c.settles(c.claims("a4", time.Hour), "")
			if left := c.claim(time.Hour); left.Token != 0 {
				t.Errorf("%q is left", eventsOf(left))
			}
		})
	}
}

type contract struct {
	*service
	store outbox.Store
}

func (c contract) claim(lease time.Duration) outbox.Claim {
	claim, err := c.store.ClaimEvents(c.Context(), outbox.Limits{Lanes: outbox.Lanes, Events: 100, Bytes: 1 << 20, Lease: lease})
	pgtest.Must(c, err)
	return claim
}

// claims repeats until a claim has all that is wanted: the reader of the log may be late. It releases what is less.
func (c contract) claims(want string, lease time.Duration) (claim outbox.Claim) {
	c.Helper()
	pgtest.Eventually(c, 10*time.Second, "a claim has "+want, func() bool {
		if claim = c.claim(lease); claim.Token != 0 && eventsOf(claim) != want {
			c.settles(outbox.Claim{Lease: claim.Lease}, "")
		}
		return eventsOf(claim) == want
	})
	return claim
}

// settles ends a claim, of which the broker has refused one event.
func (c contract) settles(claim outbox.Claim, refused string) {
	c.Helper()
	held, err := c.store.SettleClaim(c.Context(), pgtest.Settlement(claim, func(e outbox.Claimed) bool { return nameOf(e) == refused }))
	if !held || err != nil {
		c.Fatalf("SettleClaim() = %t, %v, want true", held, err)
	}
}

func nameOf(e outbox.Claimed) string { return fmt.Sprint(e.AggregateID, e.Version) }

// eventsOf returns the events of a claim by aggregate. A deferred one has its attempts, and one that must not be sent an exclamation mark.
func eventsOf(claim outbox.Claim) string {
	slices.SortStableFunc(claim.Events, func(a, b outbox.Claimed) int { return strings.Compare(a.AggregateID, b.AggregateID) })
	return strings.Join(pg.MapSlice(claim.Events, func(e outbox.Claimed) string {
		name := nameOf(e)
		if e.Deferred {
			name += fmt.Sprint("/", e.Attempts)
		}
		if e.Behind {
			name += "!"
		}
		return name
	}), " ")
}
