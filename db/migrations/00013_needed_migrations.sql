-- +goose Up
SET LOCAL lock_timeout = '2s';
-- Why a build without a migration must not run on this database, as an option writes it; NULL: it may.
ALTER TABLE IF EXISTS video_catalog_migrations ADD COLUMN needed text;
-- +goose Down
ALTER TABLE video_catalog_migrations DROP COLUMN needed;
