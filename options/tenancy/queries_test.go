package tenancy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.com/videocatalog/internal/pg/pgtest"
)

var (
	comment = regexp.MustCompile(`(?m)^\s*--.*$`)
	ofAll   = regexp.MustCompile(`(?m)^-- Of all tenants: \S`)
)

// forgetful returns the names of the queries of a file that read or write a table of tenants, and neither name tenant_id nor
// say in a comment why they are of all tenants. Row security hides the mistake, and the query reads an index of all tenants.
func forgetful(queries string, tables []string) (names []string) {
	for _, query := range strings.Split(queries, "-- name: ")[1:] {
		sql := comment.ReplaceAllString(query, "")
		for _, table := range tables {
			if regexp.MustCompile(regexp.QuoteMeta(table)+`\b`).MatchString(sql) && !strings.Contains(sql, "tenant_id") && !ofAll.MatchString(query) {
				names = append(names, strings.Fields(query)[0])
				break
			}
		}
	}
	return names
}

// Every query of a table with tenant_id names the column.
func TestQueriesNameTheTenant(t *testing.T) {
	t.Parallel()
	found, err := texts(t.Context(), pgtest.Pool(t, 1), tables)
	must(t, err)
	for _, pattern := range []string{"db/queries/*.sql", "internal/pg/queries/*.sql", "options/*/queries/*.sql"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		must(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must(t, err)
			for _, name := range forgetful(string(text), found) {
				t.Errorf("%s: the query %s does not name tenant_id, and has no comment -- Of all tenants: WHY", file, name)
			}
		}
	}
}

func TestForgetfulQueriesAreFound(t *testing.T) {
	t.Parallel()
	const queries = `-- name: GetA :one
SELECT * FROM s.as WHERE id = @id AND tenant_id = @tenant_id::text;
-- name: ListA :many
-- Without a tenant_id.
SELECT * FROM s.as ORDER BY id;
-- name: LockA :many
-- Of all tenants: the caller is a loop.
SELECT * FROM s.as;
-- name: ListAll :many
SELECT * FROM s.ass;
`
	if got := strings.Join(forgetful(queries, []string{"s.as"}), " "); got != "ListA" {
		t.Errorf("forgetful queries = %q, want ListA", got)
	}
}
