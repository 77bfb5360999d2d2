package pg_test

import (
	"context"
	"testing"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// An action that cannot be written into the audit has no effect.
func TestNoActionWithoutItsAudit(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), pgtest.Pool(t, 4)
	pgtest.Execute(t, pool, `INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at) VALUES ('parcel', 'p', 3, 8, 'refused', now())`)
	pgtest.Execute(t, pool, `INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, repeat)
		VALUES (3, 1, gen_random_uuid(), 'parcel', 'p', 'Sent', 1, 1, '', now(), '')`)
	events, inbox := pg.NewOutbox(pool), pg.NewInbox(pool)
	pgtest.Must(t, inbox.Quarantine(ctx, "test", envelope.Quarantined{MessageID: "1"}))
	blocked, total, err := events.ListBlocked(ctx, pg.Filter{}, 10)
	if total != 1 || err != nil {
		t.Fatalf("ListBlocked() = %d, %v, want one", total, err)
	}
	nothing := pg.Entry{} // the table refuses an entry without a filter
	for name, act := range map[string]func(context.Context, pg.Entry) error{
		"retry": func(ctx context.Context, e pg.Entry) error {
			_, err := events.RetryBlocked(ctx, blocked, e)
			return err
		},
		"skip": func(ctx context.Context, e pg.Entry) error {
			_, err := events.SkipBlocked(ctx, blocked, e)
			return err
		},
		"delete": func(ctx context.Context, e pg.Entry) error {
			_, err := inbox.DeleteQuarantine(ctx, []int64{1}, e)
			return err
		},
	} {
		if err := act(ctx, nothing); err == nil {
			t.Errorf("%s without an entry = nil, want an error", name)
		}
	}
	for sql, want := range map[string]int{
		"SELECT count(*) FROM video_catalog.audit":                                      0,
		"SELECT count(*) FROM video_catalog_read.audit":                                 0,
		"SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL": 1,
		"SELECT count(*) FROM video_catalog.outbox_deferred":                            1,
		"SELECT count(*) FROM video_catalog.outbox_skipped":                             0,
		"SELECT count(*) FROM video_catalog_read.quarantine":                            1,
	} {
		pgtest.WantCount(t, pool, want, sql, sql)
	}
}
