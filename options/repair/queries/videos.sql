-- The catalog and its owner, as they are compared. Both digests hash the same columns in the same order. A hash is of the
-- values and not of their text, so it depends on no setting of the session. A purged video leaves a tombstone without content.
-- In the catalog, a video that its owner does not have differs, too. Tombstones are left out unless tombstones is true: each side
-- prunes its own. hash_record_extended may differ between versions of PostgreSQL: a comparison then costs more.

-- name: BoundVideos :many
-- Returns the id of the next video behind after_id after skipping a number of others; no row if there is none.
SELECT id FROM video_catalog.videos WHERE id > @after_id::uuid ORDER BY id LIMIT 1 OFFSET @others::int;

-- name: DigestVideos :many
-- Returns a checksum of the videos behind after_id and up to up_to. If each is true, it returns one checksum per video.
SELECT CASE WHEN @each::bool THEN id ELSE @up_to::uuid END AS id, count(*)::bigint AS rows,
	sum(hash_record_extended(ROW(id, title, description, release_year, duration_ms, language_code, tags,
		state = 'published' AND delete_time IS NULL, delete_time IS NOT NULL, version,
		publish_time, update_time), 0))::text AS sum
FROM video_catalog.videos
WHERE id > @after_id::uuid AND id <= @up_to AND (@tombstones::bool OR NOT (delete_time IS NOT NULL AND title = ''))
GROUP BY 1;

-- name: BoundProjections :many
-- The same for the catalog.
SELECT video_id FROM video_catalog_read.video_projection WHERE video_id > @after_id::uuid ORDER BY video_id LIMIT 1 OFFSET @others::int;

-- name: DigestProjections :many
-- The same for the catalog.
SELECT CASE WHEN @each::bool THEN video_id ELSE @up_to::uuid END AS id, count(*)::bigint AS rows,
	sum(hash_record_extended(ROW(video_id, title, description, release_year, duration_ms, language_code, tags,
		visible, deleted, version,
		publish_time, update_time), 0))::text AS sum
FROM video_catalog_read.video_projection
WHERE video_id > @after_id::uuid AND video_id <= @up_to AND (@tombstones::bool OR NOT (deleted AND title = ''))
GROUP BY 1;

-- name: MoveFutureProjections :execrows
-- Gives some rows the current transaction id if theirs is still in the future. A dump that was restored into a younger
-- cluster has such rows, and no watch would see them. A locked row waits for the next call.
UPDATE video_catalog_read.video_projection
SET change_xid = pg_current_xact_id()
WHERE video_id IN (
	SELECT video_id FROM video_catalog_read.video_projection
	WHERE change_xid >= pg_snapshot_xmax(pg_current_snapshot())
	ORDER BY change_xid, video_id
	LIMIT @max_rows
	FOR NO KEY UPDATE SKIP LOCKED
);
