package store_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// auditOf is what the audit has of an action on one item.
func auditOf(action string) admin.Entry {
	return admin.Entry{
		ActionID: uuid.New(), Actor: admin.Actor{Name: "ann@desk", Via: "command"}, Action: action, Filter: []byte("{}"), Reason: "test",
		Items: 1, Before: []byte(`[{"different": 1}]`), After: []byte(`[{"entries": 1}]`),
	}
}

// An action that cannot be written into the audit has no effect.
func TestNoActionWithoutItsAudit(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2")
	l.park("a1 a2", "a1")
	ctx := t.Context()
	videos, inbox := store.NewVideos(l.pool, nil), store.NewInbox(l.pool)
	comparison := store.NewVideoComparison(l.pool, l.pool)
	if err := inbox.Quarantine(ctx, "catalog", quarantined("1")); err != nil {
		t.Fatal(err)
	}
	e := created(t, "Ran")
	if _, err := videos.CreateVideo(ctx, uuid.New(), []byte("fingerprint"), e); err != nil {
		t.Fatal(err)
	}
	nothing := admin.Entry{} // no filter, which the table refuses
	for name, act := range map[string]func(context.Context, admin.Entry) error{
		"requeue": func(ctx context.Context, e admin.Entry) error {
			_, err := l.RequeueBlocked(ctx, admin.Filter{}, envelope.Aggregate{}, 10, e)
			return err
		},
		"skip": func(ctx context.Context, e admin.Entry) error {
			_, err := l.SkipBlocked(ctx, admin.Filter{}, uuid.Nil, envelope.Aggregate{}, 10, e)
			return err
		},
		"delete": func(ctx context.Context, e admin.Entry) error {
			_, err := inbox.DeleteQuarantine(ctx, []int64{1}, e)
			return err
		},
		"republish": func(ctx context.Context, entry admin.Entry) error {
			items, err := l.Retained(admin.Filter{ID: e.Video.ID.String()}, []store.Aggregates{store.VideoAggregates()})
			if err == nil {
				_, err = items.RepeatItems(ctx, uuid.Nil, uuid.Max, 10, entry)
			}
			return err
		},
		"backfill": func(ctx context.Context, e admin.Entry) error {
			items, err := l.Snapshots("video", []store.Aggregates{store.VideoAggregates()})
			if err == nil {
				_, err = items.RepeatItems(ctx, uuid.Nil, uuid.Max, 10, e)
			}
			return err
		},
		"repair": func(ctx context.Context, entry admin.Entry) error {
			_, _, err := comparison.RepairEntries(ctx, []uuid.UUID{e.Video.ID}, entry)
			return err
		},
		"forget": func(ctx context.Context, e admin.Entry) error {
			_, err := inbox.Forget(ctx, "catalog", e)
			return err
		},
		"know the command side": func(ctx context.Context, e admin.Entry) error {
			_, err := l.KnowDatabase(ctx, "elsewhere", e)
			return err
		},
		"know the query side": func(ctx context.Context, e admin.Entry) error {
			_, err := inbox.KnowDatabase(ctx, "elsewhere", e)
			return err
		},
	} {
		if err := act(ctx, nothing); err == nil {
			t.Errorf("%s without an entry = nil, want an error", name)
		}
	}
	for sql, want := range map[string]int{
		"SELECT count(*) FROM video_catalog.audit":                                            0,
		"SELECT count(*) FROM video_catalog_read.audit":                                       0,
		"SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL":       1,
		"SELECT count(*) FROM video_catalog.outbox_aside":                                     2,
		"SELECT count(*) FROM video_catalog.outbox_pending WHERE repeat <> ''":                0,
		"SELECT count(*) FROM video_catalog_read.quarantine":                                  1,
		"SELECT count(*) FROM video_catalog_read.inbox_generations":                           0,
		"SELECT count(*) FROM video_catalog_read.video_projection":                            0,
		"SELECT count(*) FROM video_catalog.known_database WHERE identity = 'elsewhere'":      0,
		"SELECT count(*) FROM video_catalog_read.known_database WHERE identity = 'elsewhere'": 0,
	} {
		if got := count(t, l.pool, sql); got != want {
			t.Errorf("%s = %d, want %d", sql, got, want)
		}
	}
}

// The inbox shows what each consumer has applied, by generation, also of a generation without
// rows. It counts rows in pages.
func TestInboxIsListed(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	inbox, catalog, outbox := store.NewInbox(pool), store.NewCatalog(pool), store.NewOutbox(pool)
	if parts, err := inbox.Parts(t.Context(), ""); len(parts) != 0 || err != nil {
		t.Errorf("Parts() of an empty inbox = %+v, %v", parts, err)
	}
	events := life(t, "Ran", 3)
	project(t, catalog, "catalog", events...)
	project(t, catalog, "another", events[0])
	for range 2 {
		if _, err := inbox.Forget(t.Context(), "catalog", auditOf(admin.ActionSeek)); err != nil {
			t.Fatal(err)
		}
		if _, err := inbox.Forget(t.Context(), "quiet", auditOf(admin.ActionSeek)); err != nil {
			t.Fatal(err)
		}
	}
	project(t, catalog, "catalog", events[1])
	const many = 10_001 // more than a page
	execute(t, pool, `INSERT INTO video_catalog_read.inbox (consumer, event_id, received_at)
		SELECT 'anothers', gen_random_uuid(), timestamptz '2026-01-01 00:00:00Z' + n * interval '1 second' FROM generate_series(1, 10001) n`)

	type part struct {
		Consumer   string
		Generation int64
		Present    bool
		Rows       int64
	}
	var got []part
	parts, err := inbox.Parts(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		rows, err := inbox.MeasurePart(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, part{p.Consumer, p.Generation, p.Present, rows.Rows})
		if rows.Oldest.IsZero() != (rows.Rows == 0) || rows.Newest.Before(rows.Oldest) {
			t.Errorf("%+v: from %s to %s", p, rows.Oldest, rows.Newest)
		}
		if span := rows.Newest.Sub(rows.Oldest).Seconds(); p.Consumer == "anothers" && span != many-1 {
			t.Errorf("%+v: %v seconds, want %d", p, span, many-1)
		}
	}
	want := []part{{"another", 0, true, 1}, {"anothers", 0, true, many}, {"catalog", 0, false, 3}, {"catalog", 2, true, 1}, {"quiet", 2, true, 0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	if parts, err = inbox.Parts(t.Context(), "catalog"); len(parts) != 2 || err != nil {
		t.Errorf("Parts() of one consumer = %+v, %v, want 2", parts, err)
	}

	for _, e := range events { // the outbox says whose events they are
		execute(t, pool, `INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			VALUES ('`+e.ID.String()+`', 'video', '`+e.Video.ID.String()+`', 'x', 1, 1, '', now())`)
	}
	ids, err := outbox.EventIDs(t.Context(), events[0].Video.ID.String())
	if err != nil || len(ids) != 3 || ids[0] != events[0].ID {
		t.Errorf("EventIDs() = %v, %v, want those of 3 events", ids, err)
	}
	if none, err := outbox.EventIDs(t.Context(), newID(t).String()); len(none) != 0 || err != nil {
		t.Errorf("EventIDs() of another = %v, %v, want none", none, err)
	}
	for i, want := range []int{3, 1} {
		applied, err := inbox.EventsOf(t.Context(), parts[i], ids)
		if err != nil || len(applied) != want || applied[0].Consumer != "catalog" || applied[0].Time.IsZero() {
			t.Errorf("EventsOf() generation %d = %+v, %v, want %d", parts[i].Generation, applied, err, want)
		}
	}
}
