-- +goose Up
-- The console says that a database was replaced also to a person who may only read.
GRANT EXECUTE ON FUNCTION video_catalog.database_identity(), video_catalog_read.database_identity() TO support_ro;

-- +goose Down
REVOKE EXECUTE ON FUNCTION video_catalog.database_identity(), video_catalog_read.database_identity() FROM support_ro;
