-- +goose Up
-- A video can be purged: its content is erased for good, and a tombstone is left, which goes later. docs/erasure.md says
-- what is erased when.
CREATE TABLE video_catalog.erasures (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	aggregate_type text NOT NULL,
	aggregate_id text NOT NULL,
	create_time timestamptz NOT NULL DEFAULT now(),
	CONSTRAINT erasures_of_videos CHECK (aggregate_type = 'video') -- outbox_erase erases no other type
);

COMMENT ON TABLE video_catalog.erasures IS 'The purged aggregates of which outbox and requests may still have rows. The maintenance erases those rows, then the entry.';
COMMENT ON COLUMN video_catalog.erasures.create_time IS 'When the aggregate was purged.';

-- Reads up to max_rows events behind after_id, in the order of their ids. Deletes the events of the given erasures, except
-- the event of the purge. Returns the last id that it read, or NULL if there was none. SECURITY DEFINER, because the
-- service itself may only append. So it checks that the aggregate is purged. It does not read by aggregate: an index for
-- that would slow down every append.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_erase(erasure_ids bigint[], after_id uuid, max_rows int) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET enable_seqscan = off AS $$
DECLARE
	purged text[] := ARRAY(
		SELECT e.aggregate_id FROM video_catalog.erasures e
		JOIN video_catalog.videos v ON v.id = e.aggregate_id::uuid
		WHERE e.id = ANY (erasure_ids) AND e.aggregate_type = 'video' AND v.purge_time IS NOT NULL
	);
	last_id uuid;
BEGIN
	SELECT o.id INTO last_id
	FROM (SELECT id FROM video_catalog.outbox WHERE id > after_id ORDER BY id LIMIT max_rows) o
	ORDER BY o.id DESC LIMIT 1;
	-- An array, because a join with any statistics may read these events once per aggregate.
	DELETE FROM video_catalog.outbox o
	WHERE o.id > after_id AND o.id <= last_id
		AND o.aggregate_type = 'video' AND o.aggregate_id = ANY (purged) AND o.event_type <> 'VideoPurged';
	RETURN last_id;
END $$;
-- +goose StatementEnd

-- Deletes at most max_rows tombstones of videos that were purged longer ago than older_than, and returns how many. It deletes
-- none while an erasure of that age is left: outbox_erase needs the row. Nobody can use it to delete a recent tombstone: the time
-- is at least 30 days. SECURITY DEFINER, because the service itself may not delete videos.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.tombstones_prune(older_than interval, max_rows int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	WITH old AS (
		SELECT now() - greatest(older_than, interval '30 days') AS bound
	), gone AS (
		DELETE FROM video_catalog.videos
		WHERE id IN (
			SELECT v.id FROM video_catalog.videos v
			WHERE v.purge_time < (SELECT bound FROM old) AND NOT EXISTS (SELECT FROM video_catalog.erasures e WHERE e.create_time < (SELECT bound FROM old))
			ORDER BY v.purge_time
			LIMIT max_rows
			FOR UPDATE SKIP LOCKED
		)
		RETURNING 1
	)
	SELECT count(*) FROM gone
$$;

-- The same for the catalog, by the time when a tombstone was last written. The entry of a video that is deleted and not purged
-- has a title, and stays.
CREATE FUNCTION video_catalog_read.tombstones_prune(older_than interval, max_rows int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	WITH gone AS (
		DELETE FROM video_catalog_read.video_projection
		WHERE video_id IN (
			SELECT p.video_id FROM video_catalog_read.video_projection p
			WHERE p.deleted AND p.title = '' AND p.updated_at < now() - greatest(older_than, interval '30 days')
			ORDER BY p.updated_at
			LIMIT max_rows
			FOR UPDATE SKIP LOCKED
		)
		RETURNING 1
	)
	SELECT count(*) FROM gone
$$;
-- +goose StatementEnd

GRANT SELECT, INSERT, DELETE ON video_catalog.erasures TO video_catalog_rw;
GRANT SELECT ON video_catalog.erasures TO support_ro;
GRANT EXECUTE ON FUNCTION video_catalog.outbox_erase(bigint[], uuid, int) TO video_catalog_rw;
GRANT EXECUTE ON FUNCTION video_catalog.tombstones_prune(interval, int) TO video_catalog_rw;
GRANT EXECUTE ON FUNCTION video_catalog_read.tombstones_prune(interval, int) TO video_catalog_read_rw;

-- +goose Down
DROP FUNCTION video_catalog.outbox_erase(bigint[], uuid, int);
DROP FUNCTION video_catalog.tombstones_prune(interval, int), video_catalog_read.tombstones_prune(interval, int);
DROP TABLE video_catalog.erasures;
