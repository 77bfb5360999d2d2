-- name: GetVideoDatabase :one
-- Returns the database of the command side, and the one in which its data was last known to be right.
SELECT video_catalog.database_identity() AS live, identity AS known FROM video_catalog.known_database;

-- name: KnowVideoDatabase :exec
UPDATE video_catalog.known_database SET identity = @identity, updated_at = clock_timestamp();

-- name: GetTokenKey :one
SELECT token_key FROM video_catalog.known_database;

-- name: GetCatalogDatabase :one
-- Returns the same for the query side.
SELECT video_catalog_read.database_identity() AS live, identity AS known FROM video_catalog_read.known_database;

-- name: KnowCatalogDatabase :exec
UPDATE video_catalog_read.known_database SET identity = @identity, updated_at = clock_timestamp();

-- name: GetChangesDatabase :one
-- Returns the database whose changes ListProjectionChanges reads, and whether that database has given out the transaction
-- id yet.
SELECT video_catalog_read.database_identity() AS identity, (@xid::xid8 < pg_snapshot_xmax(pg_current_snapshot()))::bool AS begun;

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
