-- +goose Up
-- What is left of purged videos goes, too, when nothing can bring their content back any more: see docs/operations.md.
SET LOCAL lock_timeout = '2s';

-- Deletes at most max_rows tombstones of videos that were purged longer ago than older_than, and returns how many. It deletes
-- none while an erasure is as old: outbox_erase needs the row. Nobody can use it to delete what was purged lately: the time
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

-- The same for the catalog, where a tombstone counts from when it was last written. Another tombstone, without a purge, has the
-- content of its video.
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

REVOKE ALL ON FUNCTION video_catalog.tombstones_prune(interval, int), video_catalog_read.tombstones_prune(interval, int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION video_catalog.tombstones_prune(interval, int) TO video_catalog_rw;
GRANT EXECUTE ON FUNCTION video_catalog_read.tombstones_prune(interval, int) TO video_catalog_read_rw;

-- +goose Down
DROP FUNCTION video_catalog.tombstones_prune(interval, int), video_catalog_read.tombstones_prune(interval, int);
