-- +goose NO TRANSACTION
-- +goose Up
-- For tombstones_prune.
CREATE INDEX CONCURRENTLY video_projection_tombstones ON video_catalog_read.video_projection (updated_at) WHERE deleted AND title = '';

-- +goose Down
DROP INDEX video_catalog_read.video_projection_tombstones;
