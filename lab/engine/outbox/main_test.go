package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/lab/engine/rig"
)

var (
	checkInvariants = rig.CheckInvariants
	eventually      = rig.Eventually
)

func TestMain(m *testing.M) { storetest.Main(m) }

// listBlocked returns the blocked aggregates.
func listBlocked(t testing.TB, pool *pgxpool.Pool) ([]admin.Blocked, error) {
	t.Helper()
	blocked, _, err := store.NewOutbox(pool).ListBlocked(t.Context(), admin.Filter{}, 10)
	return blocked, err
}
