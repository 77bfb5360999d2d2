-- +goose Up
SET LOCAL lock_timeout = '2s';

-- A watch checks whether it still reads the same database.
GRANT EXECUTE ON FUNCTION video_catalog_read.database_identity() TO video_catalog_read_calls;

-- +goose Down
REVOKE EXECUTE ON FUNCTION video_catalog_read.database_identity() FROM video_catalog_read_calls;
