-- +goose Up
-- Least privilege: a role per side. They cannot log in; grant them to the users of the service:
--   CREATE USER video_user PASSWORD '…' IN ROLE video_rw;  CREATE USER catalog_user PASSWORD '…' IN ROLE catalog_rw;
-- Roles belong to the whole server, so a migration of another database may have created them.
-- +goose StatementBegin
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['video_rw', 'catalog_rw'] LOOP
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

GRANT USAGE ON SCHEMA video TO video_rw;
GRANT SELECT, INSERT, UPDATE ON video.videos TO video_rw;
GRANT SELECT, INSERT, DELETE ON video.requests TO video_rw;
GRANT SELECT, INSERT ON video.outbox TO video_rw;
GRANT SELECT, INSERT, UPDATE (lane), DELETE ON video.outbox_pending TO video_rw;
GRANT SELECT ON video.outbox_aside TO video_rw;
GRANT SELECT, INSERT, UPDATE, DELETE ON video.outbox_blocked TO video_rw;
GRANT SELECT, UPDATE ON video.outbox_lanes TO video_rw;
GRANT SELECT, UPDATE (identity, updated_at) ON video.known_database TO video_rw;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA video FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA video TO video_rw;

GRANT USAGE ON SCHEMA catalog_read TO catalog_rw;
GRANT SELECT, INSERT, UPDATE ON catalog_read.video_projection TO catalog_rw;
GRANT SELECT, INSERT, DELETE ON catalog_read.inbox, catalog_read.quarantine TO catalog_rw;
GRANT SELECT, UPDATE (identity, updated_at) ON catalog_read.known_database TO catalog_rw;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA catalog_read FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA catalog_read TO catalog_rw;
GRANT SELECT, INSERT, UPDATE ON catalog_read.quarantine_size TO catalog_rw;

-- Both read the schema version at start.
GRANT SELECT ON goose_db_version TO video_rw, catalog_rw;

-- +goose Down
REVOKE ALL ON goose_db_version FROM video_rw, catalog_rw;
REVOKE ALL ON ALL TABLES IN SCHEMA video FROM video_rw;
REVOKE ALL (lane) ON video.outbox_pending FROM video_rw;
REVOKE ALL (identity, updated_at) ON video.known_database FROM video_rw;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA video FROM video_rw;
REVOKE ALL ON SCHEMA video FROM video_rw;
REVOKE ALL ON ALL TABLES IN SCHEMA catalog_read FROM catalog_rw;
REVOKE ALL (identity, updated_at) ON catalog_read.known_database FROM catalog_rw;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA catalog_read FROM catalog_rw;
REVOKE ALL ON SCHEMA catalog_read FROM catalog_rw;
