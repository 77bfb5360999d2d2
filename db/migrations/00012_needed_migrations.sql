-- +goose Up
SET LOCAL lock_timeout = '2s';

-- Why a build without a migration must not run on this database; NULL: it may. An option writes it. IF EXISTS is for sqlc: see 00010.
ALTER TABLE IF EXISTS video_catalog_migrations ADD COLUMN needed text;

-- +goose Down
ALTER TABLE video_catalog_migrations DROP COLUMN needed;
