package app

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// A maintenance that hangs at the start ends the start, after the time to wait for the database.
func TestStartDoesNotWaitForMaintenanceThatHangs(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 1)
	if _, err := pool.Exec(t.Context(), `CREATE OR REPLACE FUNCTION video_catalog.outbox_maintain(days_ahead int, keep interval)
		RETURNS TABLE (created int, dropped int) LANGUAGE sql AS $$ SELECT 0, 0 FROM pg_sleep(600) $$`); err != nil {
		t.Fatal(err)
	}
	cfg := config{limits: Config{DatabaseWait: 100 * time.Millisecond}, OutboxRetention: 7 * 24 * time.Hour}
	if err := prepareOutbox(t.Context(), store.NewOutbox(pool), cfg); err == nil || !strings.Contains(err.Error(), "maintain outbox") {
		t.Errorf("prepareOutbox() = %v, want an error of the maintenance", err)
	}
}

// A start during which the database ends all sessions, again and again, takes
// longer and does not fail.
func TestStartSurvivesLostSessions(t *testing.T) {
	t.Parallel()
	target := storetest.Direct(t, storetest.URL(t))
	admin, err := db.Open(t.Context(), target, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	var ended atomic.Bool
	go func() {
		defer ended.Store(true)
		for range 50 {
			_, _ = admin.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
			time.Sleep(rand.N(100 * time.Millisecond))
		}
	}()
	cfg := config{
		Roles: []string{roleAPI, rolePublisher, roleProjector}, DatabaseURL: target, ReadDatabaseURL: target,
		DatabaseMaxConns: 8, limits: Config{DatabaseWait: time.Minute}, OutboxRetention: 7 * 24 * time.Hour,
	}
	for !ended.Load() {
		s := newService("serve", cfg, nil)
		if err := s.open(t.Context(), cfg.sides(), nil); err != nil {
			t.Fatalf("open() = %v", err)
		}
		if err := prepareOutbox(t.Context(), store.NewOutbox(s.Commands), cfg); err != nil {
			t.Errorf("prepareOutbox() = %v", err)
		}
		s.close()
	}
}
