-- +goose Up
SET LOCAL lock_timeout = '2s';

-- Calls set timers. With the option tenancy they have a role of their own, which has the rights of the loops. If its rights are older than the
-- table, it gets them here; else the migration of that option grants them.
-- +goose StatementBegin
DO $$
DECLARE
	allow text;
BEGIN
	FOR allow IN
		SELECT format('GRANT %s ON video_catalog.timers TO video_catalog_calls', a.privilege_type)
		FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
		WHERE c.oid = 'video_catalog.timers'::regclass AND a.grantee = 'video_catalog_rw'::regrole
			AND has_schema_privilege(to_regrole('video_catalog_calls')::oid, 'video_catalog', 'USAGE')
	LOOP
		EXECUTE allow;
	END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
-- The grants go with the table.
SELECT 1;
