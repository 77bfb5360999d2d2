-- +goose Up
-- Least privilege: a role per side. They cannot log in; grant them to the users of the service:
--   CREATE USER videocatalog_app PASSWORD '…' IN ROLE videocatalog_rw;  CREATE USER videocatalog_read_app PASSWORD '…' IN ROLE videocatalog_read_rw;
-- Roles belong to the whole server, so a migration of another database may have created them.
-- +goose StatementBegin
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['videocatalog_rw', 'videocatalog_read_rw'] LOOP
		IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = name) THEN
			BEGIN
				EXECUTE format('CREATE ROLE %I NOLOGIN', name);
			EXCEPTION WHEN duplicate_object OR unique_violation THEN
				NULL; -- a migration of another database was faster
			END;
		END IF;
	END LOOP;
END $$;
-- +goose StatementEnd

GRANT USAGE ON SCHEMA videocatalog TO videocatalog_rw;
GRANT SELECT, INSERT, UPDATE ON videocatalog.videos TO videocatalog_rw;
GRANT SELECT, INSERT, DELETE ON videocatalog.requests TO videocatalog_rw;
GRANT SELECT, INSERT ON videocatalog.outbox TO videocatalog_rw;
GRANT SELECT, INSERT, UPDATE (lane), DELETE ON videocatalog.outbox_pending TO videocatalog_rw;
GRANT SELECT ON videocatalog.outbox_aside TO videocatalog_rw;
GRANT SELECT, INSERT, UPDATE, DELETE ON videocatalog.outbox_blocked TO videocatalog_rw;
GRANT SELECT, UPDATE ON videocatalog.outbox_lanes TO videocatalog_rw;
GRANT SELECT, UPDATE (identity, updated_at) ON videocatalog.known_database TO videocatalog_rw;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA videocatalog FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA videocatalog TO videocatalog_rw;

GRANT USAGE ON SCHEMA videocatalog_read TO videocatalog_read_rw;
GRANT SELECT, INSERT, UPDATE ON videocatalog_read.video_projection TO videocatalog_read_rw;
GRANT SELECT, INSERT, DELETE ON videocatalog_read.inbox, videocatalog_read.quarantine TO videocatalog_read_rw;
GRANT SELECT, UPDATE (identity, updated_at) ON videocatalog_read.known_database TO videocatalog_read_rw;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA videocatalog_read FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA videocatalog_read TO videocatalog_read_rw;
GRANT SELECT, INSERT, UPDATE ON videocatalog_read.quarantine_size TO videocatalog_read_rw;

-- Both read the schema version at start.
GRANT SELECT ON goose_db_version TO videocatalog_rw, videocatalog_read_rw;

-- +goose Down
REVOKE ALL ON goose_db_version FROM videocatalog_rw, videocatalog_read_rw;
REVOKE ALL ON ALL TABLES IN SCHEMA videocatalog FROM videocatalog_rw;
REVOKE ALL (lane) ON videocatalog.outbox_pending FROM videocatalog_rw;
REVOKE ALL (identity, updated_at) ON videocatalog.known_database FROM videocatalog_rw;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA videocatalog FROM videocatalog_rw;
REVOKE ALL ON SCHEMA videocatalog FROM videocatalog_rw;
REVOKE ALL ON ALL TABLES IN SCHEMA videocatalog_read FROM videocatalog_read_rw;
REVOKE ALL (identity, updated_at) ON videocatalog_read.known_database FROM videocatalog_read_rw;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA videocatalog_read FROM videocatalog_read_rw;
REVOKE ALL ON SCHEMA videocatalog_read FROM videocatalog_read_rw;
