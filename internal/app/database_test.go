package app

import (
	"strings"
	"testing"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A process does not start without the partitions of the outbox.
func TestStartNeedsPartitions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	pgtest.Execute(t, pool, `CREATE OR REPLACE FUNCTION video_catalog.outbox_maintain(days_ahead int, keep interval)
		RETURNS void LANGUAGE sql AS $$ SELECT 1 / 0 $$`)
	if err := new(Process).maintainPartitions(t.Context(), pg.NewOutbox(pool)); err == nil || !strings.Contains(err.Error(), "maintain outbox") {
		t.Errorf("maintainPartitions() = %v, want an error of the maintenance", err)
	}
}
