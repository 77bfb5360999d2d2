-- +goose NO TRANSACTION
-- +goose Up
-- For tombstones_prune.
CREATE INDEX CONCURRENTLY videos_purge_time ON video_catalog.videos (purge_time) WHERE purge_time IS NOT NULL;

-- +goose Down
DROP INDEX video_catalog.videos_purge_time;
