-- +goose Up
-- Expand: the new column is there before any build knows it.
SET LOCAL lock_timeout = '2s';
ALTER TABLE video.videos ADD COLUMN premiere_year int;

-- +goose Down
ALTER TABLE video.videos DROP COLUMN premiere_year;
