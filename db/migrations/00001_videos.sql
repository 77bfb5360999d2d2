-- +goose Up
-- The command side: what VideoService owns. Nothing outside the schema videocatalog refers to it.
CREATE SCHEMA videocatalog;

CREATE TABLE videocatalog.videos (
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

COMMENT ON TABLE videocatalog.videos IS 'The aggregates. The lock of a row is the lock of its aggregate: version and outbox row are written under it.';
COMMENT ON COLUMN videocatalog.videos.release_year IS '0 if not known.';
COMMENT ON COLUMN videocatalog.videos.duration_ms IS 'Running time in milliseconds; 0 if not known.';
COMMENT ON COLUMN videocatalog.videos.version IS '1 after the creation, +1 with every change; equal to the version of the last event.';

-- One index per order and filter that ListVideos offers.
CREATE INDEX videos_create_time ON videocatalog.videos (create_time, id);
CREATE INDEX videos_state ON videocatalog.videos (state, create_time, id);
CREATE INDEX videos_language_code ON videocatalog.videos (language_code, create_time, id);

-- Identifies this history of this database: the system identifier, the timeline, and the oid of the main table of this
-- side. A promoted standby and a point-in-time restore have another timeline, a restored dump has another oid, and
-- another cluster has another system identifier. A restart or a crash changes nothing. On a standby it fails as a write
-- does (25006), because data read there may be older than data read before.
-- +goose StatementBegin
CREATE FUNCTION videocatalog.database_identity() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF pg_is_in_recovery() THEN
		RAISE read_only_sql_transaction USING MESSAGE = 'this database is a standby';
	END IF;
	RETURN concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
		left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 'videocatalog.videos'::regclass::oid);
END $$;
-- +goose StatementEnd

CREATE TABLE videocatalog.known_database (
	one bool PRIMARY KEY DEFAULT true CHECK (one),
	identity text NOT NULL,
	token_key bytea NOT NULL,
	updated_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE videocatalog.known_database IS 'The one row is the history in which this side was last known to be right. If database_identity() differs, run server rebuild.';
COMMENT ON COLUMN videocatalog.known_database.token_key IS 'The key that seals page tokens and resume tokens of both services: 244 random bits from two random UUIDs.';

INSERT INTO videocatalog.known_database (identity, token_key)
SELECT videocatalog.database_identity(), decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex');

-- +goose Down
DROP SCHEMA videocatalog CASCADE;
