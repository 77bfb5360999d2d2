package main

import (
	"strings"
	"testing"

	"example.com/videocatalog/internal/deep"
)

// A maintenance that hangs at the start ends the process, which says so.
func TestStartDoesNotWaitForMaintenanceThatHangs(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	s := newStack(t)
	if _, err := s.pool.Exec(t.Context(), `CREATE OR REPLACE FUNCTION video_catalog.outbox_maintain(days_ahead int, keep interval)
		RETURNS TABLE (created int, dropped int) LANGUAGE sql AS $$ SELECT 0, 0 FROM pg_sleep(600) $$`); err != nil {
		t.Fatal(err)
	}
	_, err := s.commandIn(t, []string{"LAB_DATABASE_WAIT=5s"}, "serve")
	if err == nil || !strings.Contains(err.Error(), "maintain outbox") {
		t.Errorf("serve = %v, want an error of the maintenance", err)
	}
}
