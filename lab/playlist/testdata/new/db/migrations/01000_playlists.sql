-- +goose Up
SET LOCAL lock_timeout = '2s';

CREATE TABLE video_catalog.playlists (
	id uuid PRIMARY KEY,
	title text NOT NULL,
	video_ids uuid[] NOT NULL,
	version bigint NOT NULL CHECK (version > 0),
	create_time timestamptz NOT NULL,
	update_time timestamptz NOT NULL,
	delete_time timestamptz
) WITH (fillfactor = 90);
GRANT SELECT, INSERT, UPDATE ON video_catalog.playlists TO video_catalog_rw;
GRANT SELECT ON video_catalog.playlists TO support_ro;

CREATE TABLE video_catalog_read.playlist_projection (
	playlist_id uuid PRIMARY KEY,
	title text NOT NULL,
	video_ids uuid[] NOT NULL,
	deleted bool NOT NULL,
	version bigint NOT NULL
) WITH (fillfactor = 90);
GRANT SELECT, INSERT, UPDATE ON video_catalog_read.playlist_projection TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.playlist_projection TO support_ro;

-- +goose Down
DROP TABLE video_catalog_read.playlist_projection;
DROP TABLE video_catalog.playlists;
