-- name: GetCommandDatabase :one
-- Returns the database of the command side, and the one in which its data was last known to be right.
SELECT video_catalog.database_identity() AS live, identity AS known FROM video_catalog.known_database;

-- name: KnowCommandDatabase :exec
UPDATE video_catalog.known_database SET identity = @identity, updated_at = clock_timestamp();

-- name: GetTokenKey :one
SELECT token_key FROM video_catalog.known_database;

-- name: GetQueryDatabase :one
-- Returns the same for the query side.
SELECT video_catalog_read.database_identity() AS live, identity AS known FROM video_catalog_read.known_database;

-- name: KnowQueryDatabase :exec
UPDATE video_catalog_read.known_database SET identity = @identity, updated_at = clock_timestamp();
