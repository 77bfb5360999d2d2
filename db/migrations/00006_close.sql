-- +goose Up
-- Nobody else has access.
SET LOCAL lock_timeout = '2s';

REVOKE ALL ON SCHEMA video_catalog, video_catalog_read FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA video_catalog, video_catalog_read FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA video_catalog, video_catalog_read FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA video_catalog, video_catalog_read FROM PUBLIC;

-- Every role reads the schema version at start.
GRANT SELECT ON goose_db_version TO video_catalog_rw, video_catalog_read_rw, support_ro;

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
CREATE POLICY service_reads ON goose_db_version FOR SELECT TO video_catalog_rw, video_catalog_read_rw, support_ro USING (true);

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
REVOKE ALL ON goose_db_version FROM video_catalog_rw, video_catalog_read_rw, support_ro;
