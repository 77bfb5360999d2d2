-- +goose Up
-- What is left to erase of purged aggregates, on the command side.
SET LOCAL lock_timeout = '2s';

CREATE TABLE video_catalog.erasures (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	aggregate_type text NOT NULL,
	aggregate_id text NOT NULL,
	create_time timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE video_catalog.erasures IS 'The purged aggregates of which outbox and requests may still have rows. The maintenance erases those rows, then the entry.';
COMMENT ON COLUMN video_catalog.erasures.create_time IS 'When the aggregate was purged.';

REVOKE ALL ON video_catalog.erasures FROM PUBLIC;
GRANT SELECT, INSERT, DELETE ON video_catalog.erasures TO video_catalog_rw;
GRANT SELECT ON video_catalog.erasures TO support_ro;

-- +goose Down
DROP TABLE video_catalog.erasures;
