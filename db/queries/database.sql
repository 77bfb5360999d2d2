-- name: GetVideoDatabase :one
-- The database that the command side is in, and the one it was last known to be right in.
SELECT video.database_identity() AS live, identity AS known FROM video.known_database;

-- name: KnowVideoDatabase :exec
UPDATE video.known_database SET identity = @identity, updated_at = clock_timestamp();

-- name: GetTokenKey :one
SELECT token_key FROM video.known_database;

-- name: GetCatalogDatabase :one
-- The same of the query side.
SELECT catalog_read.database_identity() AS live, identity AS known FROM catalog_read.known_database;

-- name: KnowCatalogDatabase :exec
UPDATE catalog_read.known_database SET identity = @identity, updated_at = clock_timestamp();

-- name: GetChangesDatabase :one
-- The database whose changes ListProjectionChanges reads, and whether it can have given a transaction its id yet.
SELECT catalog_read.database_identity() AS identity, (@xid::xid8 < pg_snapshot_xmax(pg_current_snapshot()))::bool AS begun;

-- name: MoveFutureProjections :execrows
-- Gives some rows that a transaction yet to come seems to have written a place among the changes of now. A dump that
-- was restored into a younger cluster has them, and no watch would see them. A row that is locked waits for the next time.
UPDATE catalog_read.video_projection
SET change_xid = pg_current_xact_id()
WHERE video_id IN (
	SELECT video_id FROM catalog_read.video_projection
	WHERE change_xid >= pg_snapshot_xmax(pg_current_snapshot())
	ORDER BY change_xid, video_id
	LIMIT @max_rows
	FOR NO KEY UPDATE SKIP LOCKED
);
