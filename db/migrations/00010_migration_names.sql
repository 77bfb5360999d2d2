-- +goose Up
SET LOCAL lock_timeout = '2s';

-- The file of each migration: two may have the same number. `server migrate` writes it. IF EXISTS is for sqlc, which does not know the table.
ALTER TABLE IF EXISTS video_catalog_migrations ADD COLUMN name text;

-- +goose Down
ALTER TABLE video_catalog_migrations DROP COLUMN name;
