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
