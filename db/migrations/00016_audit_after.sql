-- +goose Up
-- The audit says what an action has made of its items, where the action and the items before it do not say so.
SET LOCAL lock_timeout = '2s';

ALTER TABLE video_catalog.audit ADD COLUMN after jsonb NOT NULL DEFAULT '[]';
ALTER TABLE video_catalog_read.audit ADD COLUMN after jsonb NOT NULL DEFAULT '[]';

COMMENT ON COLUMN video_catalog.audit.after IS 'An array of these items, as this transaction has left them. Empty if the action says it: a deleted message is gone, a requeued aggregate is due.';
COMMENT ON COLUMN video_catalog_read.audit.after IS 'See the column of the same name on the command side.';

GRANT INSERT (after) ON video_catalog.audit TO video_catalog_rw;
GRANT INSERT (after) ON video_catalog_read.audit TO video_catalog_read_rw;

-- +goose Down
ALTER TABLE video_catalog.audit DROP COLUMN after;
ALTER TABLE video_catalog_read.audit DROP COLUMN after;
