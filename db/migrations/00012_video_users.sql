-- +goose Up
SET LOCAL lock_timeout = '2s';

ALTER TABLE video_catalog.videos ADD COLUMN create_user text NOT NULL DEFAULT '';
ALTER TABLE video_catalog_read.video_projection ADD COLUMN create_user text NOT NULL DEFAULT '';
ALTER TABLE video_catalog.videos ADD COLUMN update_user text NOT NULL DEFAULT '';
ALTER TABLE video_catalog_read.video_projection ADD COLUMN update_user text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE video_catalog_read.video_projection DROP COLUMN create_user;
ALTER TABLE video_catalog.videos DROP COLUMN create_user;
ALTER TABLE video_catalog_read.video_projection DROP COLUMN update_user;
ALTER TABLE video_catalog.videos DROP COLUMN update_user;
