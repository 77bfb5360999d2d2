-- +goose Up
SET LOCAL lock_timeout = '2s';

-- A role per side, and a read-only one for people. They cannot log in: docs/database.md says which users get them. Each
-- migration grants what its tables need. Roles belong to the server, so a migration of another database may have made them.
-- +goose StatementBegin
DO $$
DECLARE
	missing text;
BEGIN
	FOR missing IN
		SELECT name
		FROM unnest(ARRAY['video_catalog_rw', 'video_catalog_read_rw', 'support_ro']) name
		WHERE to_regrole(name) IS NULL
	LOOP
		BEGIN
			EXECUTE format('CREATE ROLE %I NOLOGIN', missing);
		EXCEPTION WHEN duplicate_object OR unique_violation THEN
			NULL; -- a migration of another database was faster
		END;
	END LOOP;
END $$;
-- +goose StatementEnd

-- PostgreSQL lets everybody call a new function. From now on, new functions of this owner are closed. New tables are
-- closed anyway. No default grant opens them, because it would open new partitions of the outbox, with their payloads.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- Goose's tables are in the schema public, which the Data API of Supabase shows to the world, with default privileges to
-- write there. A later GRANT on all tables must not open them either, so they get row security, which does not apply to
-- the owner. Every role reads the schema version at start. Only `server migrate` makes the table of the lock.
-- +goose StatementBegin
DO $$
DECLARE
	revoke text;
BEGIN
	FOR revoke IN
		SELECT format('REVOKE ALL ON %s FROM %I', c.oid::regclass, r.rolname)
		FROM pg_roles r, pg_class c
		WHERE r.rolname IN ('anon', 'authenticated', 'service_role') AND c.oid IN (
			to_regclass('video_catalog_migrations'),
			to_regclass('video_catalog_migrations_id_seq'),
			to_regclass('video_catalog_migration_lock')
		)
	LOOP
		EXECUTE revoke;
	END LOOP;
END $$;
-- +goose StatementEnd
GRANT SELECT ON video_catalog_migrations TO video_catalog_rw, video_catalog_read_rw, support_ro;
-- contract: the policy below comes in the same transaction, and shows all rows to every role of the service
ALTER TABLE video_catalog_migrations ENABLE ROW LEVEL SECURITY;
CREATE POLICY service_reads ON video_catalog_migrations FOR SELECT TO video_catalog_rw, video_catalog_read_rw, support_ro USING (true);
-- contract: only the owner reads it
ALTER TABLE IF EXISTS video_catalog_migration_lock ENABLE ROW LEVEL SECURITY;

-- +goose Down
DROP POLICY service_reads ON video_catalog_migrations;
ALTER TABLE video_catalog_migrations DISABLE ROW LEVEL SECURITY;
REVOKE ALL ON video_catalog_migrations FROM video_catalog_rw, video_catalog_read_rw, support_ro;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
