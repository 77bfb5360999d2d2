package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A name that has moved is found where an owner's code can have it, and not in a comment or a longer name.
func TestMovesIn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"internal/store/orders.go", "// Queue\n\tQueue(q.Forget(ctx, optional(id))) // Tx\n", []string{
			"internal/store/orders.go:2: optional is pg.Optional", "internal/store/orders.go:2: Queue is tx.Queue",
		}},
		{"internal/store/orders.go", "func (s *Orders) forget(ctx context.Context, tx Tx) error {", []string{"internal/store/orders.go:1: Tx is *pg.Tx"}},
		{"internal/store/orders_test.go", "\tstoretest.Pool(t, 2)\n", []string{"internal/store/orders_test.go:1: storetest.Pool is pgtest.Pool"}},
		{"options/mine/mine.go", "\treturn store.Wrap(err, \"x\")\n", []string{"options/mine/mine.go:1: store.Wrap is pg.Wrap"}},
		{"cmd/server/orders.go", "\t\tParts: map[string]any{},\n", []string{"cmd/server/orders.go:1: Parts is Options"}},
		{"options/mine/mine.go", "\treturn Wrap(pg.Wrap(err, \"store.Wrap\"), store.WrapAll)\n", nil},
	} {
		if diff := cmp.Diff(test.want, movesIn(test.name, test.text)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", test.name, test.text, diff)
		}
	}
}
