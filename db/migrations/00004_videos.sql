-- +goose Up
SET LOCAL lock_timeout = '2s';

CREATE TABLE video_catalog.videos (
	id uuid PRIMARY KEY,
	title text NOT NULL,
	description text NOT NULL,
	release_year int NOT NULL,
	duration_ms bigint NOT NULL,
	language_code text NOT NULL,
	tags text[] NOT NULL,
	state text NOT NULL CHECK (state IN ('draft', 'published')),
	version bigint NOT NULL CHECK (version > 0),
	create_time timestamptz NOT NULL,
	update_time timestamptz NOT NULL,
	publish_time timestamptz,
	delete_time timestamptz,
	purge_time timestamptz,
	CONSTRAINT videos_purged_are_empty CHECK (
		purge_time IS NULL
		OR delete_time IS NOT NULL AND (title, description, release_year, duration_ms, language_code, tags) = ('', '', 0, 0, '', '{}')
	)
) WITH (fillfactor = 90);

COMMENT ON TABLE video_catalog.videos IS 'The aggregates. The lock of a row is the lock of its aggregate: version and outbox row are written under it.';
COMMENT ON COLUMN video_catalog.videos.release_year IS '0 if not known.';
COMMENT ON COLUMN video_catalog.videos.duration_ms IS 'Running time in milliseconds; 0 if not known.';
COMMENT ON COLUMN video_catalog.videos.version IS '1 after the creation, +1 with every change; equal to the version of the last event.';
COMMENT ON COLUMN video_catalog.videos.purge_time IS 'When the content was erased; NULL if it was not. The row stays as a tombstone until tombstones_prune deletes it, so that its id and its versions are not used again.';

-- One index per order and filter that ListVideos offers.
CREATE INDEX videos_create_time ON video_catalog.videos (create_time, id);
CREATE INDEX videos_state ON video_catalog.videos (state, create_time, id);
CREATE INDEX videos_language_code ON video_catalog.videos (language_code, create_time, id);
-- For tombstones_prune.
CREATE INDEX videos_purge_time ON video_catalog.videos (purge_time) WHERE purge_time IS NOT NULL;

GRANT SELECT, INSERT, UPDATE ON video_catalog.videos TO video_catalog_rw;
GRANT SELECT ON video_catalog.videos TO support_ro;

-- +goose Down
DROP TABLE video_catalog.videos;
