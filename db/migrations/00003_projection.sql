-- +goose Up
-- The query side: the projector writes it and CatalogService reads it. It knows the schema videocatalog only by its events, so
-- the two schemas could be in two databases.
CREATE SCHEMA videocatalog_read;

CREATE TABLE videocatalog_read.video_projection (
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

COMMENT ON TABLE videocatalog_read.video_projection IS 'The newest known state of every video, also of hidden and deleted ones: with their version, a late event cannot bring them back.';
COMMENT ON COLUMN videocatalog_read.video_projection.visible IS 'Whether the video is in the catalog: published and not deleted.';
COMMENT ON COLUMN videocatalog_read.video_projection.deleted IS 'A tombstone.';
COMMENT ON COLUMN videocatalog_read.video_projection.version IS 'The version of the event that this row was built from.';
COMMENT ON COLUMN videocatalog_read.video_projection.event_id IS 'The id of that event; NULL if server rebuild wrote the row.';
COMMENT ON COLUMN videocatalog_read.video_projection.search IS 'Words of title (A), tags (B) and description (C), and parts of words of the title (D), as internal/search writes them. Empty while not visible.';
COMMENT ON COLUMN videocatalog_read.video_projection.change_xid IS 'The transaction that last wrote the row. For watches it is the position of the change.';
COMMENT ON COLUMN videocatalog_read.video_projection.updated_at IS 'When the row was last written.';

-- One index per order and filter that CatalogService offers.
CREATE INDEX video_projection_publish_time ON videocatalog_read.video_projection (publish_time, video_id) WHERE visible;
CREATE INDEX video_projection_title ON videocatalog_read.video_projection (title, video_id) WHERE visible;
CREATE INDEX video_projection_language_code ON videocatalog_read.video_projection (language_code, publish_time, video_id) WHERE visible;
CREATE INDEX video_projection_release_year ON videocatalog_read.video_projection (release_year, publish_time, video_id) WHERE visible;
CREATE INDEX video_projection_tags ON videocatalog_read.video_projection USING gin (tags) WHERE visible;
CREATE INDEX video_projection_search ON videocatalog_read.video_projection USING gin (search) WHERE visible;
CREATE INDEX video_projection_change ON videocatalog_read.video_projection (change_xid, video_id);

CREATE TABLE videocatalog_read.inbox (
	consumer text NOT NULL,
	event_id uuid NOT NULL,
	received_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (consumer, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05); -- a prune also reads deleted rows until they are vacuumed

COMMENT ON TABLE videocatalog_read.inbox IS 'Ids of the events that a consumer has projected, for deduplication and audit.';
COMMENT ON COLUMN videocatalog_read.inbox.consumer IS 'The consumer and, for a rebuild by seek, its generation: a new name sees every event as new.';

CREATE TABLE videocatalog_read.quarantine (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	consumer text NOT NULL,
	message_id text NOT NULL,
	ordering_key text NOT NULL,
	attributes jsonb NOT NULL,
	payload bytea,
	payload_size bigint,
	payload_sha256 text,
	reason text NOT NULL,
	publish_time timestamptz NOT NULL,
	received_at timestamptz NOT NULL DEFAULT now(),
	UNIQUE (consumer, message_id),
	CHECK (payload IS NOT NULL OR payload_size IS NOT NULL AND payload_sha256 IS NOT NULL)
);

COMMENT ON TABLE videocatalog_read.quarantine IS 'Messages that could not be applied, until a person replays or deletes them, or until they are too old. They are kept whole while there is room for their bytes.';
COMMENT ON COLUMN videocatalog_read.quarantine.payload IS 'NULL if there was no room. Then attributes and reason are shortened, too.';
COMMENT ON COLUMN videocatalog_read.quarantine.payload_size IS 'Size in bytes of a payload that is not kept; else NULL.';
COMMENT ON COLUMN videocatalog_read.quarantine.payload_sha256 IS 'SHA-256 in hexadecimal of a payload that is not kept; else NULL.';

CREATE TABLE videocatalog_read.quarantine_size (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	bytes bigint NOT NULL
) WITH (fillfactor = 10);
COMMENT ON TABLE videocatalog_read.quarantine_size IS 'The sum of its rows is the size of the payloads, attributes and reasons in quarantine. Triggers maintain it, so delete rows of quarantine, and never truncate it.';

-- The sum is stored, so that storing a message does not add up all others. The table has as many rows as there were
-- transactions at the same time: a transaction that finds all rows locked inserts one. So no transaction waits for
-- another that is left open.
-- +goose StatementBegin
CREATE FUNCTION videocatalog_read.add_to_quarantine_size() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	changed bigint;
	free bigint;
BEGIN
	SELECT sum(coalesce(octet_length(payload), 0) + octet_length(attributes::text) + octet_length(reason)) INTO changed FROM changed_rows;
	IF changed IS NULL THEN
		RETURN NULL;
	END IF;
	IF TG_OP = 'DELETE' THEN
		changed := -changed;
	END IF;
	SELECT id INTO free FROM videocatalog_read.quarantine_size ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
	IF FOUND THEN
		UPDATE videocatalog_read.quarantine_size SET bytes = bytes + changed WHERE id = free;
	ELSE
		INSERT INTO videocatalog_read.quarantine_size (bytes) VALUES (changed);
	END IF;
	RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER quarantine_inserted AFTER INSERT ON videocatalog_read.quarantine REFERENCING NEW TABLE AS changed_rows
	FOR EACH STATEMENT EXECUTE FUNCTION videocatalog_read.add_to_quarantine_size();
CREATE TRIGGER quarantine_deleted AFTER DELETE ON videocatalog_read.quarantine REFERENCING OLD TABLE AS changed_rows
	FOR EACH STATEMENT EXECUTE FUNCTION videocatalog_read.add_to_quarantine_size();

-- Identifies this history of this database: the system identifier, the timeline, and the oid of the main table of this
-- side. A promoted standby and a point-in-time restore have another timeline, a restored dump has another oid, and
-- another cluster has another system identifier. A restart or a crash changes nothing. On a standby it fails as a write
-- does (25006), because data read there may be older than data read before.
-- +goose StatementBegin
CREATE FUNCTION videocatalog_read.database_identity() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF pg_is_in_recovery() THEN
		RAISE read_only_sql_transaction USING MESSAGE = 'this database is a standby';
	END IF;
	RETURN concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
		left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 'videocatalog_read.video_projection'::regclass::oid);
END $$;
-- +goose StatementEnd

CREATE TABLE videocatalog_read.known_database (
	one bool PRIMARY KEY DEFAULT true CHECK (one),
	identity text NOT NULL,
	updated_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE videocatalog_read.known_database IS 'The one row is the history in which this side was last known to be right. If database_identity() differs, run server rebuild.';

INSERT INTO videocatalog_read.known_database (identity)
SELECT videocatalog_read.database_identity();

-- +goose Down
DROP SCHEMA videocatalog_read CASCADE;
