-- +goose Up
-- Identifies this history of this database on the command side: the system identifier, the timeline, and the oid of a table. A promoted
-- standby and a point-in-time restore have another timeline, a restored dump has another oid, and another cluster has another
-- system identifier. A restart or a crash changes nothing. On a standby it fails as a write does (25006), because data read
-- there may be older than data read before.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.database_identity() RETURNS text LANGUAGE sql STABLE AS $$
	SELECT CASE WHEN pg_is_in_recovery() THEN pg_current_xact_id()::text -- which is what fails
	ELSE concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
		left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 'video_catalog.outbox'::regclass::oid)
	END
$$;
-- +goose StatementEnd

CREATE TABLE video_catalog.known_database (
	one bool PRIMARY KEY DEFAULT true CHECK (one),
	identity text NOT NULL,
	updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE video_catalog_read.known_database (LIKE video_catalog.known_database INCLUDING ALL);

COMMENT ON TABLE video_catalog.known_database IS 'The one row is the history in which this side was last known to be right. If database_identity() differs, run server projection repair --all.';
COMMENT ON TABLE video_catalog_read.known_database IS 'The one row is the history in which this side was last known to be right. If database_identity() differs, run server projection repair --all.';

INSERT INTO video_catalog.known_database (identity) SELECT video_catalog.database_identity();
INSERT INTO video_catalog_read.known_database (identity) SELECT video_catalog_read.database_identity();

GRANT EXECUTE ON FUNCTION video_catalog.database_identity() TO video_catalog_rw;
GRANT SELECT, UPDATE (identity, updated_at) ON video_catalog.known_database TO video_catalog_rw;
GRANT SELECT, UPDATE (identity, updated_at) ON video_catalog_read.known_database TO video_catalog_read_rw;
GRANT SELECT ON video_catalog.known_database, video_catalog_read.known_database TO support_ro;

-- +goose Down
DROP TABLE video_catalog.known_database, video_catalog_read.known_database;
DROP FUNCTION video_catalog.database_identity;
