-- +goose Up
SET LOCAL lock_timeout = '2s';

-- A role per side for API calls. Its users see the rows of one tenant at a time, so they must not be members of the roles
-- of the loops, which see all. `server migrate` runs the migrations of entities first: they make the roles in the same way.
-- +goose StatementBegin
DO $$
DECLARE
	missing text;
BEGIN
	FOR missing IN
		SELECT name FROM unnest(ARRAY['video_catalog_calls', 'video_catalog_read_calls']) name WHERE to_regrole(name) IS NULL
	LOOP
		BEGIN
			EXECUTE format('CREATE ROLE %I NOLOGIN', missing);
		EXCEPTION WHEN duplicate_object OR unique_violation THEN
			NULL; -- a migration of another database was faster
		END;
	END LOOP;
END $$;
-- +goose StatementEnd

-- A call appends events, and reads none: the outbox has the events of all tenants.
GRANT USAGE ON SCHEMA video_catalog TO video_catalog_calls;
GRANT INSERT, SELECT (id) ON video_catalog.outbox TO video_catalog_calls;
GRANT INSERT ON video_catalog.outbox_pending TO video_catalog_calls;
GRANT SELECT, INSERT ON video_catalog.requests TO video_catalog_calls;
GRANT USAGE ON SCHEMA video_catalog_read TO video_catalog_read_calls;

-- Of the tables of aggregates, and of timers, which calls set, a call may do what the loops may. Of projections it reads.
-- A later migration of an entity grants the same.
-- +goose StatementBegin
DO $$
DECLARE
	allow text;
BEGIN
	FOR allow IN
		SELECT format('GRANT %s ON %s TO %I', a.privilege_type, c.oid::regclass, n.nspname || '_calls')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL aclexplode(c.relacl) a
		WHERE n.nspname IN ('video_catalog', 'video_catalog_read') AND a.grantee = to_regrole(n.nspname || '_rw')
			AND (n.nspname = 'video_catalog' OR a.privilege_type = 'SELECT')
			AND (c.oid = to_regclass('video_catalog.timers')
				OR (SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = c.oid AND attname IN ('version', 'update_time')))
	LOOP
		EXECUTE allow;
	END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
REVOKE ALL ON ALL TABLES IN SCHEMA video_catalog FROM video_catalog_calls;
REVOKE ALL ON SCHEMA video_catalog FROM video_catalog_calls;
REVOKE ALL ON ALL TABLES IN SCHEMA video_catalog_read FROM video_catalog_read_calls;
REVOKE ALL ON SCHEMA video_catalog_read FROM video_catalog_read_calls;
