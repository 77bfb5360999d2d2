-- +goose Up
-- Nobody else has access.
SET LOCAL lock_timeout = '2s';

REVOKE ALL ON SCHEMA video_catalog, video_catalog_read FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA video_catalog, video_catalog_read FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA video_catalog, video_catalog_read FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA video_catalog, video_catalog_read FROM PUBLIC;

-- Every role reads the schema version at start.
GRANT SELECT ON video_catalog_migrations TO video_catalog_rw, video_catalog_read_rw, support_ro;

-- Goose keeps its table in the schema public. Supabase's Data API shows that schema to the world, with default privileges
-- that let anon write there. A later GRANT on all tables there must not open this table either, so it gets row security.
-- Row security does not apply to the owner, who migrates.
REVOKE ALL ON video_catalog_migrations FROM PUBLIC;
-- +goose StatementBegin
DO $$
DECLARE
	name text;
BEGIN
	FOR name IN SELECT rolname FROM pg_roles WHERE rolname IN ('anon', 'authenticated', 'service_role') LOOP
		EXECUTE format('REVOKE ALL ON video_catalog_migrations FROM %I', name);
		EXECUTE format('REVOKE ALL ON SEQUENCE video_catalog_migrations_id_seq FROM %I', name);
	END LOOP;
END $$;
-- +goose StatementEnd
-- contract: the policy below comes in the same transaction, and shows all rows to every role of the service
ALTER TABLE video_catalog_migrations ENABLE ROW LEVEL SECURITY;
CREATE POLICY service_reads ON video_catalog_migrations FOR SELECT TO video_catalog_rw, video_catalog_read_rw, support_ro USING (true);

-- The same for the table of goose's lock. `server migrate` creates it before its first migration; other ways to run
-- goose do not. Only the owner needs it.
-- +goose StatementBegin
DO $$
DECLARE
	name text;
BEGIN
	IF to_regclass('video_catalog_migration_lock') IS NULL THEN
		RETURN;
	END IF;
	REVOKE ALL ON video_catalog_migration_lock FROM PUBLIC;
	FOR name IN SELECT rolname FROM pg_roles WHERE rolname IN ('anon', 'authenticated', 'service_role') LOOP
		EXECUTE format('REVOKE ALL ON video_catalog_migration_lock FROM %I', name);
	END LOOP;
END $$;
-- +goose StatementEnd
-- contract: only the owner reads it
ALTER TABLE IF EXISTS video_catalog_migration_lock ENABLE ROW LEVEL SECURITY;

-- +goose Down
DROP POLICY service_reads ON video_catalog_migrations;
ALTER TABLE video_catalog_migrations DISABLE ROW LEVEL SECURITY;
REVOKE ALL ON video_catalog_migrations FROM video_catalog_rw, video_catalog_read_rw, support_ro;
