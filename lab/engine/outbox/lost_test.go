package outbox_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// watchful is a store that ends the first claim as soon as it has leased a lane.
type watchful struct {
	outbox.Store
	leased func() bool
	claims atomic.Int64
	lost   atomic.Bool // the first claim leased a lane and failed
}

func (s *watchful) ClaimEvents(ctx context.Context, batch int, bytes int64, lease time.Duration, of envelope.Aggregate) (outbox.Claim, error) {
	if s.claims.Add(1) > 1 {
		return s.Store.ClaimEvents(ctx, batch, bytes, lease, of)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // however slow the database is
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil && !s.leased() {
			time.Sleep(time.Millisecond)
		}
		cancel()
	})
	claim, err := s.Store.ClaimEvents(ctx, batch, bytes, lease, of)
	cancel()
	watching.Wait()
	s.lost.Store(err != nil && s.leased())
	return claim, err
}

// A publisher whose claim was made, and had no answer, publishes what it has
// claimed; it does not wait until its own lease ends.
func TestClaimWithoutAnAnswerIsPublished(t *testing.T) {
	t.Parallel()
	s := newStorm(t)
	network := storetest.NewNetwork(t, s.url)
	pool, err := db.Open(t.Context(), network.URL, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	events := store.NewOutbox(pool)
	if _, err := events.ClaimEvents(t.Context(), 1, 1, time.Hour, envelope.Aggregate{}); err != nil { // it prepares the statement
		t.Fatal(err)
	}
	if err := s.change(uuid.Must(uuid.NewV7())); err != nil {
		t.Fatal(err)
	}
	network.Freeze()() // from here on the answers on this connection are lost
	watched := &watchful{Store: events, leased: func() (leased bool) {
		if err := s.pool.QueryRow(t.Context(), "SELECT bool_or(leased_until > now()) FROM video_catalog.outbox_lanes").Scan(&leased); err != nil {
			t.Error(err)
		}
		return leased
	}}
	publisher := mustNew(t, watched, broker(func(m envelope.Message) outbox.Receipt {
		s.book.write(0, m)
		return answer(nil)
	}), outbox.Config{Workers: 1, Lease: time.Hour})
	defer run(t, publisher)()
	eventually(t, "the event is published", func() bool { return s.book.len() > 0 })
	if !watched.lost.Load() {
		t.Error("no claim was lost: the test does not test anything")
	}
}
