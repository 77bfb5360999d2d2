package outbox_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/engine/rig"
)

var checkInvariants = rig.CheckInvariants

func TestMain(m *testing.M) {
	if os.Getenv(brokerVariable) != "" {
		if err := serveBroker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	pgtest.Main(m)
}

// listBlocked returns the blocked aggregates.
func listBlocked(t testing.TB, pool *pgxpool.Pool) ([]pg.Blocked, error) {
	t.Helper()
	blocked, _, err := pg.NewOutbox(pool).ListBlocked(t.Context(), pg.Filter{}, 10)
	return blocked, err
}
