-- +goose Up
-- Every build that writes fills the new column, and the backfill is done: from here on nobody may forget it.
SET LOCAL lock_timeout = '2s';
ALTER TABLE video_catalog.videos ADD CONSTRAINT videos_premiere_year CHECK (premiere_year IS NOT NULL) NOT VALID;

-- +goose Down
ALTER TABLE video_catalog.videos DROP CONSTRAINT videos_premiere_year;
