-- +goose Up
-- Expand: the new column is there before any build knows it.
SET LOCAL lock_timeout = '2s';
ALTER TABLE video_catalog.videos ADD COLUMN premiere_year int;

-- +goose Down
ALTER TABLE video_catalog.videos DROP COLUMN premiere_year;
