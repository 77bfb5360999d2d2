-- +goose Up
SET LOCAL lock_timeout = '2s';

-- The state of the reader of mode wal: see options/wal/reader.go.
CREATE TABLE video_catalog.outbox_reader (
	one bool PRIMARY KEY DEFAULT true CHECK (one),
	token bigint NOT NULL DEFAULT 0,
	lost_since timestamptz
);
INSERT INTO video_catalog.outbox_reader DEFAULT VALUES;
COMMENT ON TABLE video_catalog.outbox_reader IS 'One row: the process that reads the slot in mode wal.';
COMMENT ON COLUMN video_catalog.outbox_reader.token IS 'The fence: only the reader with this token moves events from the log to outbox_deferred. 0 if there was none since the last switch.';
COMMENT ON COLUMN video_catalog.outbox_reader.lost_since IS 'The slot was lost: the events since then come from the table outbox. NULL when they are all deferred.';

GRANT SELECT, UPDATE ON video_catalog.outbox_reader TO video_catalog_rw;
GRANT SELECT ON video_catalog.outbox_reader TO support_ro;

-- +goose Down
DROP TABLE video_catalog.outbox_reader;
