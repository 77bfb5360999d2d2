-- +goose Up
-- Contract: the last build that knew the old column is gone, and so is the wish to roll back to it.
SET LOCAL lock_timeout = '2s';
-- contract: no build since the one of 00104 reads or writes release_year
ALTER TABLE video_catalog.videos DROP COLUMN release_year;
-- contract: NOT NULL says the same
ALTER TABLE video_catalog.videos DROP CONSTRAINT videos_premiere_year;

-- +goose Down
ALTER TABLE video_catalog.videos ADD CONSTRAINT videos_premiere_year CHECK (premiere_year IS NOT NULL);
ALTER TABLE video_catalog.videos ADD COLUMN release_year int;
