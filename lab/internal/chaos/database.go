package chaos

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// ReadDatabase reads both schemas in one snapshot. It has its own SQL, because
// the queries of the service may be wrong.
func ReadDatabase(ctx context.Context, conn *pgx.Conn) (Database, error) {
	db := Database{Projection: map[uuid.UUID]string{}, Catalog: map[uuid.UUID]Entry{}}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return db, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it only reads
	for _, read := range []func(context.Context, pgx.Tx, *Database) error{readVideos, readEvents, readProjection, readCatalog, readIDs, readRest, readLeft} {
		if err := read(ctx, tx, &db); err != nil {
			return db, err
		}
	}
	return db, nil
}

func readVideos(ctx context.Context, tx pgx.Tx, db *Database) error {
	const sql = `
		SELECT id, version, title, description, release_year, duration_ms, language_code, tags, state = 'published',
			create_time, update_time, publish_time, delete_time,
			row(title, description, release_year, duration_ms, language_code, tags, state = 'published' AND delete_time IS NULL,
				delete_time IS NOT NULL, version, publish_time, update_time, state = 'published' AND delete_time IS NULL)::text
		FROM video_catalog.videos`
	var row VideoRow
	var s state
	var created, updated time.Time
	var shown, ended *time.Time
	scan := []any{&row.ID, &s.version, &s.title, &s.description, &s.year, &s.durationMs, &s.language, &s.tags, &s.published, &created, &updated, &shown, &ended, &row.Catalog}
	return each(ctx, tx, "read videos", sql, scan, func() error {
		s.created, s.updated, s.shown, s.ended = created.UnixMilli(), updated.UnixMilli(), milli(shown), milli(ended)
		row.Version, row.State = s.version, s.digest()
		db.Videos = append(db.Videos, row)
		return nil
	})
}

func milli(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMilli()
}

func readEvents(ctx context.Context, tx pgx.Tx, db *Database) error {
	const sql = `
		SELECT id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, coalesce(traceparent, '')
		FROM chaos.events`
	var id uuid.UUID
	var aggregateType, aggregateID, eventType, traceparent string
	var version, schemaVersion int64
	var payload []byte
	var occurredAt time.Time
	scan := []any{&id, &aggregateType, &aggregateID, &eventType, &version, &schemaVersion, &payload, &occurredAt, &traceparent}
	return each(ctx, tx, "read events", sql, scan, func() (err error) {
		row := EventRow{ID: id, Version: version, Type: eventType}
		if row.Video, err = uuid.Parse(aggregateID); err != nil {
			return fmt.Errorf("event %s: aggregate: %w", id, err)
		}
		// The id has the time that the clock of the process showed. occurred_at stays
		// ahead after the clock was ahead.
		row.OccurredAt = time.Unix(row.ID.Time().UnixTime())
		var e videov1.VideoEvent
		if err := proto.Unmarshal(payload, &e); err != nil {
			return fmt.Errorf("event %s: %w", id, err)
		}
		s := stateOfEvent(&e)
		row.State, row.Command, row.Blank = s.digest(), commandOf(s.title), s.blank()
		if s.published && s.ended == 0 {
			row.Entry = s.entry().digest()
		}
		attributes := map[string]string{
			"event_id": id.String(), "event_type": eventType, "aggregate_type": aggregateType, "aggregate_id": aggregateID,
			"version": strconv.FormatInt(version, 10), "schema_version": strconv.FormatInt(schemaVersion, 10),
			"occurred_at": occurredAt.UTC().Format(time.RFC3339Nano),
		}
		if traceparent != "" {
			attributes["traceparent"] = traceparent
		}
		row.Content = contentOf(aggregateID, attributes, payload)
		db.Events = append(db.Events, row)
		return nil
	})
}

func readProjection(ctx context.Context, tx pgx.Tx, db *Database) error {
	const sql = `
		SELECT video_id, row(title, description, release_year, duration_ms, language_code, tags, visible,
			deleted, version, publish_time, update_time, search <> '')::text
		FROM video_catalog_read.video_projection`
	var id uuid.UUID
	var row string
	return each(ctx, tx, "read projection", sql, []any{&id, &row}, func() error {
		db.Projection[id] = row
		return nil
	})
}

// readCatalog reads what the catalog must show for its own rows.
func readCatalog(ctx context.Context, tx pgx.Tx, db *Database) error {
	const sql = `
		SELECT video_id, title, description, release_year, duration_ms, language_code, tags, version, publish_time, update_time
		FROM video_catalog_read.video_projection WHERE visible`
	var id uuid.UUID
	var shown, updated time.Time
	s := state{published: true}
	scan := []any{&id, &s.title, &s.description, &s.year, &s.durationMs, &s.language, &s.tags, &s.version, &shown, &updated}
	return each(ctx, tx, "read catalog", sql, scan, func() error {
		s.shown, s.updated = shown.UnixMilli(), updated.UnixMilli()
		db.Catalog[id] = Entry{s.version, s.digest()}
		return nil
	})
}

// readIDs reads which events the inbox has ever had, and which the outbox still has.
func readIDs(ctx context.Context, tx pgx.Tx, db *Database) error {
	for _, ids := range []struct {
		sql string
		to  *map[uuid.UUID]bool
	}{{`SELECT event_id FROM chaos.consumed`, &db.Inbox}, {`SELECT id FROM video_catalog.outbox`, &db.Outbox}} {
		*ids.to = map[uuid.UUID]bool{}
		var event uuid.UUID
		err := each(ctx, tx, "read ids of events", ids.sql, []any{&event}, func() error {
			(*ids.to)[event] = true
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func readRest(ctx context.Context, tx pgx.Tx, db *Database) error {
	err := tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred), (SELECT count(*) FROM video_catalog_read.quarantine),
			(SELECT coalesce(array_agg(format('%s %s, %s attempts: %s', aggregate_type, aggregate_id, attempts, last_error)), '{}') FROM video_catalog.outbox_blocked),
			(SELECT coalesce(array_agg(format('lane %s until %s', lane, leased_until)), '{}') FROM video_catalog.outbox_lanes WHERE leased_until > clock_timestamp() AND token <> 0)`,
	).Scan(&db.Pending, &db.Quarantined, &db.Blocked, &db.Leased)
	if err != nil {
		return fmt.Errorf("read what is stuck: %w", err)
	}
	return nil
}

// readLeft reads what operators' commands must not leave behind, and where the audit differs from what they
// changed. A seek announces how much it will clear, so it is not compared.
func readLeft(ctx context.Context, tx pgx.Tx, db *Database) error {
	err := tx.QueryRow(ctx, `
		SELECT coalesce(array_agg(what ORDER BY what), '{}') FROM (
			SELECT format('change of the entry %s that no watch sees', p.video_id) AS what FROM video_catalog_read.video_projection p WHERE p.change_xid = '18446744073709551615'
			UNION ALL
			SELECT format('erasure of %s', e.aggregate_id) FROM video_catalog.erasures e
			UNION ALL
			SELECT format('request_id of the purged video %s', v.id) FROM video_catalog.requests q JOIN video_catalog.videos v ON v.id = q.aggregate_id::uuid
			WHERE v.purge_time IS NOT NULL
			UNION ALL
			SELECT format('purge of %s, which the audit lacks', v.id) FROM video_catalog.videos v
			WHERE v.purge_time IS NOT NULL AND NOT EXISTS (SELECT FROM video_catalog.audit a WHERE a.action = 'purge' AND a.filter ->> 'aggregate' = v.id::text)
			UNION ALL
			SELECT format('audit of %s: %s items, and operators changed %s', side, items, acted) FROM (
				SELECT 'video_catalog' AS side, coalesce(sum(items), 0) AS items FROM video_catalog.audit WHERE action <> 'purge'
				UNION ALL
				SELECT 'video_catalog_read', coalesce(sum(items), 0) FROM video_catalog_read.audit WHERE action <> 'inbox.seek'
			) audited CROSS JOIN LATERAL (SELECT count(*) AS acted FROM chaos.acted c WHERE c.side = audited.side) changed
			WHERE items <> acted
		) remains`).Scan(&db.Left)
	if err != nil {
		return fmt.Errorf("read what is left: %w", err)
	}
	return nil
}
