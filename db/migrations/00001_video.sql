-- +goose Up
-- The command side: what VideoService owns. Nothing outside the schema video refers to it.
CREATE SCHEMA video;

CREATE TABLE video.videos (
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
	delete_time timestamptz
) WITH (fillfactor = 90);

COMMENT ON TABLE video.videos IS 'The aggregates. The row lock of a video is the lock of its aggregate: version and outbox row are written under it.';
COMMENT ON COLUMN video.videos.release_year IS '0: not known.';
COMMENT ON COLUMN video.videos.duration_ms IS 'Running time in milliseconds; 0: not known.';
COMMENT ON COLUMN video.videos.version IS '1 when created, +1 with every change; equal to the version of the last event.';

-- One index per order and filter that ListVideos offers.
CREATE INDEX videos_create_time ON video.videos (create_time, id);
CREATE INDEX videos_state ON video.videos (state, create_time, id);
CREATE INDEX videos_language_code ON video.videos (language_code, create_time, id);

CREATE TABLE video.requests (
	request_id uuid PRIMARY KEY,
	video_id uuid NOT NULL,
	fingerprint bytea NOT NULL,
	create_time timestamptz NOT NULL
);

COMMENT ON TABLE video.requests IS 'Which video a request_id made, so that a repeated CreateVideo makes no second one (AIP-155). Pruned after a day.';
COMMENT ON COLUMN video.requests.fingerprint IS 'SHA-256 of what was asked for: the same id with another video is refused.';

CREATE INDEX requests_create_time ON video.requests (create_time);

-- +goose Down
DROP SCHEMA video CASCADE;
