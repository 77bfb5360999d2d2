-- +goose Up
SET LOCAL lock_timeout = '2s';

CREATE TABLE video_catalog_read.inbox_generations (
	consumer text PRIMARY KEY,
	generation bigint NOT NULL
);

COMMENT ON TABLE video_catalog_read.inbox_generations IS 'How often server seek has made the inbox of a consumer empty; no row: never.';
COMMENT ON COLUMN video_catalog_read.inbox_generations.generation IS 'Rows of the inbox have the consumer CONSUMER#GENERATION. Rows of other generations do not count, and are deleted.';

REVOKE ALL ON video_catalog_read.inbox_generations FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE ON video_catalog_read.inbox_generations TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.inbox_generations TO support_ro;

-- +goose Down
DROP TABLE video_catalog_read.inbox_generations;
