package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/store/storetest"
)

// grant is the privileges of a role on a table.
type grant struct {
	Role, Schema, Table, Privileges string
	Versioned                       bool // of an aggregate or a view: deleting a row would forget its version
}

// excess returns the privileges that nobody should have. A side reads and writes the tables of its own
// schema, and deletes rows that have no version. People read both schemas.
func (g grant) excess() (more []string) {
	var may []string
	switch {
	case g.Role == "support_ro",
		strings.HasSuffix(g.Table, "_migrations") && g.Schema == "public" && strings.HasPrefix(g.Role, "video_catalog_"):
		may = []string{"SELECT"}
	case g.Role == g.Schema+"_rw":
		may = []string{"INSERT", "SELECT", "UPDATE"}
		if !g.Versioned {
			may = append(may, "DELETE")
		}
	}
	for privilege := range strings.FieldsSeq(g.Privileges) {
		if !slices.Contains(may, privilege) {
			more = append(more, privilege)
		}
	}
	return more
}

func TestExcess(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		grant
		want string
	}{
		{grant{"video_catalog_rw", "video_catalog", "orders", "INSERT SELECT UPDATE", true}, ""},
		{grant{"video_catalog_rw", "video_catalog", "orders", "DELETE SELECT", true}, "DELETE"},
		{grant{"video_catalog_rw", "video_catalog", "notes", "DELETE SELECT TRUNCATE", false}, "TRUNCATE"},
		{grant{"video_catalog_rw", "video_catalog_read", "views", "SELECT", false}, "SELECT"},
		{grant{"video_catalog_read_rw", "video_catalog_read", "views", "DELETE SELECT", false}, ""},
		{grant{"support_ro", "video_catalog", "notes", "DELETE SELECT", false}, "DELETE"},
		{grant{"PUBLIC", "video_catalog", "notes", "SELECT", false}, "SELECT"},
	} {
		if got := strings.Join(test.excess(), " "); got != test.want {
			t.Errorf("excess() of %+v = %q, want %q", test.grant, got, test.want)
		}
	}
}

// No migration gives a role more than the work of its side needs.
func TestGrantsFitTheirSide(t *testing.T) {
	t.Parallel()
	rows, err := storetest.Pool(t, 1).Query(t.Context(), `
		SELECT coalesce(r.rolname, 'PUBLIC') AS role, n.nspname AS schema, c.relname AS table, string_agg(DISTINCT a.privilege_type, ' ') AS privileges,
			(SELECT count(*) = 2 FROM pg_attribute v WHERE v.attrelid = c.oid AND v.attname IN ('version', 'update_time')) AS versioned
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
		WHERE n.nspname IN ('public', 'video_catalog', 'video_catalog_read') AND a.grantee <> c.relowner
		GROUP BY r.rolname, n.nspname, c.oid`)
	if err != nil {
		t.Fatal(err)
	}
	grants, err := pgx.CollectRows(rows, pgx.RowToStructByName[grant])
	if err != nil || len(grants) == 0 {
		t.Fatalf("%d grants, %v", len(grants), err)
	}
	for _, g := range grants {
		if more := g.excess(); len(more) > 0 {
			t.Errorf("%s has %s on %s.%s, which its work does not need", g.Role, strings.Join(more, ", "), g.Schema, g.Table)
		}
	}
}

// A function that runs as its owner (SECURITY DEFINER) fixes its search_path: else its caller chooses
// what its names mean.
func TestDefinerFunctionsFixTheirSearchPath(t *testing.T) {
	t.Parallel()
	rows, err := storetest.Pool(t, 1).Query(t.Context(), `
		SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE p.prosecdef AND n.nspname IN ('public', 'video_catalog', 'video_catalog_read')
			AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}'))`)
	if err != nil {
		t.Fatal(err)
	}
	functions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(functions) > 0 {
		t.Errorf("%q lack SET search_path = pg_catalog, pg_temp: %v", functions, err)
	}
}
