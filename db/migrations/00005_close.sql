-- +goose Up
-- A read-only role for support, and no access for anyone else. docs/database.md says who gets which role.
SET LOCAL lock_timeout = '2s';

-- +goose StatementBegin
DO $$
BEGIN
	IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'support_ro') THEN
		BEGIN
			CREATE ROLE support_ro NOLOGIN;
		EXCEPTION WHEN duplicate_object OR unique_violation THEN
			NULL; -- a migration of another database was faster
		END;
	END IF;
END $$;
-- +goose StatementEnd

-- Granted column by column for tables with payloads. The content of an event or a broken message is for programs. A later
-- version of it may contain personal data that nobody has checked. So a new column is closed until it is granted.
GRANT USAGE ON SCHEMA videocatalog, videocatalog_read TO support_ro;
GRANT SELECT ON videocatalog.videos, videocatalog.outbox_blocked, videocatalog.outbox_lanes TO support_ro;
GRANT SELECT (aggregate_type, request_id, aggregate_id, create_time) ON videocatalog.requests TO support_ro;
GRANT SELECT (one, identity, updated_at) ON videocatalog.known_database TO support_ro;
GRANT SELECT (id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON videocatalog.outbox TO support_ro;
GRANT SELECT (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON videocatalog.outbox_pending TO support_ro;
GRANT SELECT (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON videocatalog.outbox_aside TO support_ro;
GRANT SELECT ON videocatalog_read.video_projection, videocatalog_read.inbox, videocatalog_read.known_database, videocatalog_read.quarantine_size TO support_ro;
GRANT SELECT (id, consumer, message_id, ordering_key, attributes, payload_size, payload_sha256, reason, publish_time, received_at) ON videocatalog_read.quarantine TO support_ro;
GRANT SELECT ON goose_db_version TO support_ro;

-- PostgreSQL lets everybody call a new function. From now on, new functions of this owner are closed. Tables are closed
-- anyway, and no default grant opens them: it would also open each new partition of the outbox, with its payloads.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
REVOKE ALL ON SCHEMA videocatalog, videocatalog_read FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA videocatalog, videocatalog_read FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA videocatalog, videocatalog_read FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA videocatalog, videocatalog_read FROM PUBLIC;

-- Goose keeps its table in the schema public. Supabase's Data API shows that schema to the world, with default privileges
-- that let anon write there. A later GRANT on all tables there must not open this table either, so it gets row security.
-- Row security does not apply to the owner, who migrates.
REVOKE ALL ON goose_db_version FROM PUBLIC;
-- +goose StatementBegin
DO $$
DECLARE
	name text;
BEGIN
	FOR name IN SELECT rolname FROM pg_roles WHERE rolname IN ('anon', 'authenticated', 'service_role') LOOP
		EXECUTE format('REVOKE ALL ON goose_db_version FROM %I', name);
		EXECUTE format('REVOKE ALL ON SEQUENCE goose_db_version_id_seq FROM %I', name);
	END LOOP;
END $$;
-- +goose StatementEnd
-- contract: the policy below comes in the same transaction, and shows all rows to every role of the service
ALTER TABLE goose_db_version ENABLE ROW LEVEL SECURITY;
CREATE POLICY service_reads ON goose_db_version FOR SELECT TO videocatalog_rw, videocatalog_read_rw, support_ro USING (true);

-- The same for the table of goose's lock. `server migrate` creates it before its first migration; other ways to run
-- goose do not. Only the owner needs it.
-- +goose StatementBegin
DO $$
DECLARE
	name text;
BEGIN
	IF to_regclass('goose_lock') IS NULL THEN
		RETURN;
	END IF;
	REVOKE ALL ON goose_lock FROM PUBLIC;
	FOR name IN SELECT rolname FROM pg_roles WHERE rolname IN ('anon', 'authenticated', 'service_role') LOOP
		EXECUTE format('REVOKE ALL ON goose_lock FROM %I', name);
	END LOOP;
END $$;
-- +goose StatementEnd
-- contract: only the owner reads it
ALTER TABLE IF EXISTS goose_lock ENABLE ROW LEVEL SECURITY;

-- +goose Down
DROP POLICY service_reads ON goose_db_version;
ALTER TABLE goose_db_version DISABLE ROW LEVEL SECURITY;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
REVOKE ALL ON goose_db_version FROM support_ro;
REVOKE ALL ON ALL TABLES IN SCHEMA videocatalog, videocatalog_read FROM support_ro;
REVOKE ALL (aggregate_type, request_id, aggregate_id, create_time) ON videocatalog.requests FROM support_ro;
REVOKE ALL (one, identity, updated_at) ON videocatalog.known_database FROM support_ro;
REVOKE ALL (id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON videocatalog.outbox FROM support_ro;
REVOKE ALL (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON videocatalog.outbox_pending FROM support_ro;
REVOKE ALL (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON videocatalog.outbox_aside FROM support_ro;
REVOKE ALL (id, consumer, message_id, ordering_key, attributes, payload_size, payload_sha256, reason, publish_time, received_at) ON videocatalog_read.quarantine FROM support_ro;
REVOKE ALL ON SCHEMA videocatalog, videocatalog_read FROM support_ro;
