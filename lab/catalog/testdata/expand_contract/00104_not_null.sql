-- +goose Up
-- Instant, thanks to the check. The old column may be left out from now on, so that the next build can.
SET LOCAL lock_timeout = '2s';
ALTER TABLE video_catalog.videos ALTER COLUMN premiere_year SET NOT NULL;
ALTER TABLE video_catalog.videos ALTER COLUMN release_year DROP NOT NULL;

-- +goose Down
ALTER TABLE video_catalog.videos ALTER COLUMN premiere_year DROP NOT NULL;
UPDATE video_catalog.videos SET release_year = premiere_year WHERE release_year IS NULL;
ALTER TABLE video_catalog.videos ALTER COLUMN release_year SET NOT NULL;
