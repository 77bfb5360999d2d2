package catalog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/lab/engine/rig"
)

// A call that gets no connection fails with Unavailable before its deadline.
// The error does not suggest that the database may have executed the call.
func TestWaitForConnection(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	woken := 0
	videos, catalog, inbox := store.NewVideos(pool, func() { woken++ }), store.NewCatalog(pool), pg.NewInbox(pool)
	held, err := pool.Acquire(t.Context())
	must(t, err)
	e := created(t, "Ran")
	for name, call := range map[string]func(ctx context.Context) error{
		"a transaction": func(ctx context.Context) error { _, err := videos.CreateVideo(ctx, uuid.Nil, nil, e); return err },
		"a row":         func(ctx context.Context) error { _, err := videos.GetVideo(ctx, e.Video.ID); return err },
		"rows": func(ctx context.Context) error {
			_, _, err := catalog.ListEntries(ctx, domain.EntryQuery{Limit: 1})
			return err
		},
		"a command": func(ctx context.Context) error {
			return inbox.Quarantine(ctx, "consumer", envelope.Quarantined{})
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		err := call(ctx)
		if kindOf(err) != problem.Unavailable || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("without a connection, %s is %v, and the context %v; want Unavailable, not that it took too long, while there is time", name, err, ctx.Err())
		}
		cancel()
	}
	if woken > 0 {
		t.Error("what was not begun has woken the publisher")
	}

	held.Release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 3 { // each call gives the connection back
		_, err := videos.CreateVideo(ctx, uuid.Nil, nil, created(t, "Ran"))
		must(t, err)
		if _, _, err := videos.ListVideos(ctx, domain.VideoQuery{Limit: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := videos.GetVideo(ctx, newID(t)); kindOf(err) != problem.NotFound {
			t.Fatalf("GetVideo() = %v, want NotFound", err)
		}
		if _, err := inbox.QuarantinedPayload(ctx, 1); kindOf(err) != problem.NotFound {
			t.Fatalf("QuarantinedPayload() = %v, want NotFound", err)
		}
		if _, _, err := catalog.SearchEntries(ctx, domain.SearchQuery{Words: "Ran", Limit: 1}); err != nil {
			t.Fatal(err)
		}
	}
}

// A database that does not reply is Unavailable. Project does not report the
// events as slow.
func TestSilentDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	network := rig.NewNetwork(t, pgtest.URL(t))
	pool := pgtest.Open(t, network.URL+"&connect_timeout=1", 1)
	network.Mute()
	for name, timeout := range map[string]time.Duration{"before it is given up": 1500 * time.Millisecond, "given up": time.Minute} {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		_, err := store.NewCatalog(pool).Project(ctx, "catalog", []domain.VideoEvent{*created(t, "Ran")})
		if kindOf(err) != problem.Unavailable || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while the connection is made, %s, Project() = %v, want Unavailable, not that it took too long", name, err)
		}
		cancel()
	}
}
