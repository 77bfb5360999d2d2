package repair

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/pg/pgtest"
)

// Both tables of an entity have the same columns: a comparison reports each row that has a column only on one side, and a
// repair cannot write it.
func TestBothSidesHaveTheColumns(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	columns := func(of table) []string {
		return pgtest.Column[string](t, pool, `SELECT attname FROM pg_attribute
			WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT IN ($2, 'event_id') ORDER BY 1`, of.name, of.key)
	}
	for _, p := range all(pool, pool) {
		if e, ok := p.(entity); ok {
			if diff := cmp.Diff(columns(e.owner), columns(e.view)); diff != "" {
				t.Errorf("columns of %s (-%s +%s): add them to both tables, or see \"A projection of your own\" in README.md:\n%s", e.name, e.owner.name, e.view.name, diff)
			}
		}
	}
}
