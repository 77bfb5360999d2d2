package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// watchful is a store that counts the claims that failed and leased a lane.
type watchful struct {
	outbox.Store
	leased func() bool
	lost   *atomic.Int64
}

func (s watchful) ClaimEvents(ctx context.Context, batch int, bytes int64, lease time.Duration, of event.Aggregate) (event.Claim, error) {
	claim, err := s.Store.ClaimEvents(ctx, batch, bytes, lease, of)
	if err != nil && s.leased() {
		s.lost.Add(1)
	}
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
	videos := store.NewVideos(pool, nil)
	if _, err := videos.ClaimEvents(t.Context(), 1, 1, time.Hour, event.Aggregate{}); err != nil { // it prepares the statement
		t.Fatal(err)
	}
	if err := s.create(store.NewVideos(s.pool, nil), uuid.Must(uuid.NewV7())); err != nil {
		t.Fatal(err)
	}
	network.Freeze()() // from here on the answers on this connection are lost
	watched := watchful{videos, func() (leased bool) {
		if err := s.pool.QueryRow(t.Context(), "SELECT bool_or(leased_until > now()) FROM video.outbox_lanes").Scan(&leased); err != nil {
			t.Error(err)
		}
		return leased
	}, new(atomic.Int64)}
	publisher := mustNew(t, watched, broker(func(m event.Message) outbox.Receipt {
		s.book.write(0, m)
		return answer(nil)
	}), outbox.Config{Workers: 1, Lease: time.Hour, PublishTimeout: time.Second})
	defer run(t, publisher)()
	eventually(t, "the event is published", func() bool { return s.book.len() > 0 })
	if watched.lost.Load() == 0 {
		t.Error("no claim was lost: the test does not test anything")
	}
}
