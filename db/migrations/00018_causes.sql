-- +goose Up
-- To group what is blocked by cause, the fingerprint of each error must be known. To compute it takes ten
-- times as long as to read it, so the table keeps it.
SET LOCAL lock_timeout = '2s';

-- small: a row per blocked aggregate
ALTER TABLE video_catalog.outbox_blocked ADD COLUMN cause text GENERATED ALWAYS AS (video_catalog.cause(last_error)) STORED;
COMMENT ON COLUMN video_catalog.outbox_blocked.cause IS 'What errors of the same cause have in common: see video_catalog.cause.';

-- +goose Down
ALTER TABLE video_catalog.outbox_blocked DROP COLUMN cause;
