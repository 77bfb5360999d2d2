-- +goose Up
-- To group what is blocked or in quarantine by cause, the fingerprint of each error must be known. To compute it takes ten
-- times as long as to read it, so the tables keep it.
SET LOCAL lock_timeout = '2s';

-- small: a row per blocked aggregate
ALTER TABLE video_catalog.outbox_blocked ADD COLUMN cause text GENERATED ALWAYS AS (video_catalog.cause(last_error)) STORED;
COMMENT ON COLUMN video_catalog.outbox_blocked.cause IS 'What errors of the same cause have in common: see video_catalog.cause.';

-- small: a row per message that no build could decode
ALTER TABLE video_catalog_read.quarantine ADD COLUMN cause text GENERATED ALWAYS AS (video_catalog_read.cause(reason)) STORED;
COMMENT ON COLUMN video_catalog_read.quarantine.cause IS 'What reasons of the same cause have in common: see video_catalog_read.cause.';
GRANT SELECT (cause) ON video_catalog_read.quarantine TO support_ro;

-- +goose Down
ALTER TABLE video_catalog_read.quarantine DROP COLUMN cause;
ALTER TABLE video_catalog.outbox_blocked DROP COLUMN cause;
