-- +goose Up
-- The catalog: the projector writes it from the events of videos, and CatalogService reads it.
CREATE TABLE video_catalog_read.video_projection (
	video_id uuid PRIMARY KEY,
	title text COLLATE "C" NOT NULL,
	description text NOT NULL,
	release_year int NOT NULL,
	duration_ms bigint NOT NULL,
	language_code text NOT NULL,
	tags text[] NOT NULL,
	visible bool NOT NULL,
	deleted bool NOT NULL,
	version bigint NOT NULL,
	event_id uuid,
	publish_time timestamptz,
	update_time timestamptz NOT NULL,
	search tsvector NOT NULL,
	change_xid xid8 NOT NULL,
	updated_at timestamptz NOT NULL
) WITH (fillfactor = 90);

COMMENT ON TABLE video_catalog_read.video_projection IS 'The newest known state of every video, also of hidden and deleted ones: with their version, a late event cannot bring them back.';
COMMENT ON COLUMN video_catalog_read.video_projection.visible IS 'Whether the video is in the catalog: published and not deleted.';
COMMENT ON COLUMN video_catalog_read.video_projection.deleted IS 'Whether the video is deleted or purged.';
COMMENT ON COLUMN video_catalog_read.video_projection.version IS 'The version of the event that this row was built from.';
COMMENT ON COLUMN video_catalog_read.video_projection.event_id IS 'The id of that event; NULL if a repair wrote the row.';
COMMENT ON COLUMN video_catalog_read.video_projection.search IS 'Words of title (A), tags (B) and description (C), and parts of words of the title (D), as internal/search writes them. Empty while not visible.';
COMMENT ON COLUMN video_catalog_read.video_projection.change_xid IS 'The transaction that last wrote the row. For watches it is the position of the change.';
COMMENT ON COLUMN video_catalog_read.video_projection.updated_at IS 'When the row was last written.';

-- One index per order and filter that CatalogService offers.
CREATE INDEX video_projection_publish_time ON video_catalog_read.video_projection (publish_time, video_id) WHERE visible;
CREATE INDEX video_projection_title ON video_catalog_read.video_projection (title, video_id) WHERE visible;
CREATE INDEX video_projection_language_code ON video_catalog_read.video_projection (language_code, publish_time, video_id) WHERE visible;
CREATE INDEX video_projection_release_year ON video_catalog_read.video_projection (release_year, publish_time, video_id) WHERE visible;
CREATE INDEX video_projection_tags ON video_catalog_read.video_projection USING gin (tags) WHERE visible;
CREATE INDEX video_projection_search ON video_catalog_read.video_projection USING gin (search) WHERE visible;
CREATE INDEX video_projection_change ON video_catalog_read.video_projection (change_xid, video_id);
-- For tombstones_prune.
CREATE INDEX video_projection_tombstones ON video_catalog_read.video_projection (updated_at) WHERE deleted AND title = '';

GRANT SELECT, INSERT, UPDATE ON video_catalog_read.video_projection TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.video_projection TO support_ro;

-- +goose Down
DROP TABLE video_catalog_read.video_projection;
