-- +goose Up
-- Expand: the new column is there before any build knows it.
SET LOCAL lock_timeout = '2s';
ALTER TABLE videocatalog.videos ADD COLUMN premiere_year int;

-- +goose Down
ALTER TABLE videocatalog.videos DROP COLUMN premiere_year;
