-- +goose Up
-- The query side: what it needs beside the tables of its projections. It gets only events from the schema video_catalog, so
-- the two schemas could be in two databases.
CREATE SCHEMA video_catalog_read;

CREATE TABLE video_catalog_read.inbox (
	consumer text NOT NULL,
	event_id uuid NOT NULL,
	received_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (consumer, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05); -- a prune also reads deleted rows until they are vacuumed

COMMENT ON TABLE video_catalog_read.inbox IS 'Ids of the events that a consumer has projected, for deduplication and audit.';

-- Identifies a cause: messages that differ only in numbers, ids and quoted words have the same one.
CREATE FUNCTION video_catalog_read.cause(message text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN left(md5(regexp_replace(message, '"[^"]*"|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|[0-9]+', '?', 'g')), 12);

CREATE TABLE video_catalog_read.quarantine (
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
	cause text GENERATED ALWAYS AS (video_catalog_read.cause(reason)) STORED,
	UNIQUE (consumer, message_id),
	CHECK (payload IS NOT NULL OR payload_size IS NOT NULL AND payload_sha256 IS NOT NULL)
);

COMMENT ON TABLE video_catalog_read.quarantine IS 'Messages that could not be applied, until a person replays or deletes them, or until they are too old. They are kept whole while there is room for their bytes.';
COMMENT ON COLUMN video_catalog_read.quarantine.payload IS 'NULL if there was no room. Then attributes and reason are shortened, too.';
COMMENT ON COLUMN video_catalog_read.quarantine.payload_size IS 'Size in bytes of a payload that is not kept; else NULL.';
COMMENT ON COLUMN video_catalog_read.quarantine.payload_sha256 IS 'SHA-256 in hexadecimal of a payload that is not kept; else NULL.';
COMMENT ON COLUMN video_catalog_read.quarantine.cause IS 'What reasons of the same cause have in common: see video_catalog_read.cause.';

CREATE TABLE video_catalog_read.quarantine_size (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	bytes bigint NOT NULL
) WITH (fillfactor = 10);
COMMENT ON TABLE video_catalog_read.quarantine_size IS 'The sum of its rows is the size of the payloads, attributes and reasons in quarantine. Triggers maintain it, so delete rows of quarantine, and never truncate it.';

-- The sum is stored, so that storing a message does not add up all others. The table has as many rows as there were
-- transactions at the same time: a transaction that finds all rows locked inserts one. So no transaction waits for
-- another that is left open.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.add_to_quarantine_size() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	changed bigint := (
		SELECT sum(coalesce(octet_length(payload), 0) + octet_length(attributes::text) + octet_length(reason)) * CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END
		FROM changed_rows
	);
BEGIN
	UPDATE video_catalog_read.quarantine_size SET bytes = bytes + changed
	WHERE changed <> 0 AND id = (SELECT s.id FROM video_catalog_read.quarantine_size s ORDER BY s.id LIMIT 1 FOR UPDATE SKIP LOCKED);
	IF NOT FOUND AND changed <> 0 THEN
		INSERT INTO video_catalog_read.quarantine_size (bytes) VALUES (changed);
	END IF;
	RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER quarantine_inserted AFTER INSERT ON video_catalog_read.quarantine REFERENCING NEW TABLE AS changed_rows
	FOR EACH STATEMENT EXECUTE FUNCTION video_catalog_read.add_to_quarantine_size();
CREATE TRIGGER quarantine_deleted AFTER DELETE ON video_catalog_read.quarantine REFERENCING OLD TABLE AS changed_rows
	FOR EACH STATEMENT EXECUTE FUNCTION video_catalog_read.add_to_quarantine_size();

-- Identifies this history of this database: the system identifier, the timeline, and the oid of a table. A promoted
-- standby and a point-in-time restore have another timeline, a restored dump has another oid, and another cluster has another
-- system identifier. A restart or a crash changes nothing. On a standby it fails as a write does (25006), because data read
-- there may be older than data read before.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.database_identity() RETURNS text LANGUAGE sql STABLE AS $$
	SELECT CASE WHEN pg_is_in_recovery() THEN pg_current_xact_id()::text -- which is what fails
	ELSE concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
		left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 'video_catalog_read.inbox'::regclass::oid)
	END
$$;
-- +goose StatementEnd

GRANT USAGE ON SCHEMA video_catalog_read TO video_catalog_read_rw, support_ro;
GRANT SELECT, INSERT, DELETE ON video_catalog_read.inbox, video_catalog_read.quarantine TO video_catalog_read_rw;
GRANT SELECT, INSERT, UPDATE ON video_catalog_read.quarantine_size TO video_catalog_read_rw;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA video_catalog_read TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.inbox, video_catalog_read.quarantine_size TO support_ro;
GRANT SELECT (id, consumer, message_id, ordering_key, attributes, payload_size, payload_sha256, reason, publish_time, received_at, cause) ON video_catalog_read.quarantine TO support_ro;

-- +goose Down
DROP SCHEMA video_catalog_read CASCADE;
