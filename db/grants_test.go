package db_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/store/storetest"
)

// No migration gives a role more than the work of its side: it reads and writes the tables of its own
// schema, and deletes no row of an aggregate or a view, whose version it would forget. People read. A
// function that runs as its owner (SECURITY DEFINER) fixes its search_path: else its caller chooses what
// the names in it mean.
func TestGrantsFitTheirSide(t *testing.T) {
	t.Parallel()
	rows, err := storetest.Pool(t, 1).Query(t.Context(), `
		WITH grants AS (
			SELECT c.oid, c.relname, n.nspname, coalesce(r.rolname, 'PUBLIC') AS role, a.privilege_type AS privilege
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
			WHERE n.nspname IN ('public', 'video_catalog', 'video_catalog_read') AND a.grantee <> c.relowner
		)
		SELECT format('%s has %s on %I.%I, which its work does not need', role, privilege, nspname, relname) FROM grants
		WHERE NOT CASE privilege
			WHEN 'SELECT' THEN role IN (nspname || '_rw', 'support_ro') OR relname = 'video_catalog_migrations' AND role <> 'PUBLIC'
			WHEN 'DELETE' THEN role = nspname || '_rw'
				AND (SELECT count(*) < 2 FROM pg_attribute WHERE attrelid = grants.oid AND attname IN ('version', 'update_time'))
			ELSE role = nspname || '_rw' AND privilege IN ('INSERT', 'UPDATE')
		END
		UNION ALL
		SELECT format('%s lacks SET search_path = pg_catalog, pg_temp', p.oid::regprocedure) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE p.prosecdef AND n.nspname IN ('public', 'video_catalog', 'video_catalog_read')
			AND 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(p.proconfig, '{}'))`)
	if err != nil {
		t.Fatal(err)
	}
	findings, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range findings {
		t.Error(finding)
	}
}
