package store_test

import (
	"context"
	"testing"
	"time"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// A process finds what it claimed without an answer, long before the lease
// ends: also when the database stopped, and executes the claim after a later
// one. No other process does, and the lost claim can settle nothing any more.
func TestClaimWithoutAnAnswerIsFoundAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		of       string // the letter of whose lane the claims are; empty: any
		later    bool   // the lost claim is executed after one that had an answer
		appended string
	}{
		{"of all lanes", "", false, "a1"},
		{"of one lane", "a", false, "a1"},
		{"of all lanes, executed later", "", true, "a2"},
		{"of one lane, executed later", "a", true, "a2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 2)
			network := storetest.NewNetwork(t, l.pool.Config().ConnString())
			pool, err := db.Open(t.Context(), network.URL, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			lane := outbox.AnyLane
			if tt.of != "" {
				lane = laneOf(tt.of)
			}
			ours, others := store.NewOutbox(pool), l.Outbox
			claim := func(by *store.Outbox, want string) outbox.Claim {
				t.Helper()
				l.Outbox = by
				defer func() { l.Outbox = others }()
				claim := l.claimOf(lane, 10, hour)
				if got := l.namesOf(claim); got != want {
					t.Fatalf("claimed %q, want %q", got, want)
				}
				return claim
			}
			claim(ours, "") // prepares the statement
			thaw := network.Freeze()
			defer thaw()
			l.append(l.pool, "a1")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			before := network.Sent()
			go func() {
				for ctx.Err() == nil && network.Sent() == before {
					time.Sleep(time.Millisecond)
				}
				cancel() // the claim is on its way
			}()
			if claim, err := ours.ClaimEvents(ctx, lane, 10, 1<<20, hour); err == nil {
				t.Fatalf("ClaimEvents() = %+v without an answer", claim)
			}
			for pool.Stat().TotalConns() > 0 { // until it has told the server to cancel
				time.Sleep(time.Millisecond)
			}
			if tt.later {
				l.settle(l.settlement(claim(ours, "a1"), ""))
				l.append(l.pool, "a2")
			}
			thaw()
			l.reaches(1, "SELECT count(*) FROM video_catalog.outbox_lanes WHERE leased_until > now()")
			lost := outbox.Settlement{Lane: 3, Token: int64(l.count("SELECT lease_token FROM video_catalog.outbox_lanes WHERE leased_until > now()"))}

			claim(others, "")
			found := claim(ours, tt.appended)
			claim(ours, "") // it is found once
			if held, err := ours.SettleClaim(t.Context(), lost); held || err != nil {
				t.Errorf("SettleClaim() of the lost claim = %t, %v, want false, nil", held, err)
			}
			l.settle(l.settlement(found, ""))
			if n := l.count("SELECT count(*) FROM video_catalog.outbox_pending"); n > 0 {
				t.Errorf("%d events are pending, want none", n)
			}
		})
	}
}
