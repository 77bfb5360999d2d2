-- +goose Up
-- How far the comparison of each projection with its owner has come. All processes share it, so that one of them compares at
-- a time, and a process that starts continues where another stopped.
CREATE TABLE video_catalog_read.comparisons (
	aggregate_type text PRIMARY KEY,
	claim bigint NOT NULL,
	next_time timestamptz NOT NULL,
	begin_time timestamptz NOT NULL,
	after_id uuid NOT NULL,
	compared bigint NOT NULL DEFAULT 0,
	differences bigint NOT NULL DEFAULT 0,
	last_time timestamptz,
	last_compared bigint NOT NULL DEFAULT 0,
	last_differences bigint NOT NULL DEFAULT 0
);

COMMENT ON TABLE video_catalog_read.comparisons IS 'One row per projection that is compared with its owner in the background. A pass goes through all ids in slices.';
COMMENT ON COLUMN video_catalog_read.comparisons.claim IS 'The fence: it grows with each claim of a slice, and a result is saved only under its own claim.';
COMMENT ON COLUMN video_catalog_read.comparisons.next_time IS 'When the next slice may be claimed.';
COMMENT ON COLUMN video_catalog_read.comparisons.begin_time IS 'When this pass began.';
COMMENT ON COLUMN video_catalog_read.comparisons.after_id IS 'This pass has compared everything up to this id; all zeros: nothing.';
COMMENT ON COLUMN video_catalog_read.comparisons.compared IS 'Rows that this pass has compared.';
COMMENT ON COLUMN video_catalog_read.comparisons.differences IS 'Differences that this pass has found.';
COMMENT ON COLUMN video_catalog_read.comparisons.last_time IS 'When the last pass ended; NULL if none has. last_compared and last_differences are its results.';

GRANT SELECT, INSERT, UPDATE ON video_catalog_read.comparisons TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.comparisons TO support_ro;

-- +goose Down
DROP TABLE video_catalog_read.comparisons;
