package service

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/videocatalog/internal/pg/pgtest"
)

// The smoke test succeeds with a real service. Without a projector, its error names the failed
// step. In both cases no video is left.
func TestSmoke(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "smoke")
	must(t, build(program, "deploy/smoke"))
	for _, test := range []struct{ name, roles, timeout, want string }{
		{"a service that works", "api,publisher,projector", "90s", "smoke: the service works"},
		{"nobody projects", "api,publisher", "10s", "projector at work?"},
	} {
		t.Run(test.name, func(t *testing.T) {
			database := pgtest.URL(t)
			s := &stack{url: database, pubsub: newBroker(t)}
			p := s.start(t, "ROLES="+test.roles)
			out, err := exec.CommandContext(t.Context(), program, "--timeout", test.timeout, "http://"+p.addr).CombinedOutput()
			if !strings.Contains(string(out), test.want) || (err == nil) != strings.HasPrefix(string(out), "smoke: the service works") {
				t.Errorf("smoke = %v, %s, want %q", err, out, test.want)
			}
			pool := pgtest.Open(t, database, 1)
			var left int
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM video_catalog.videos WHERE delete_time IS NULL").Scan(&left); err != nil || left != 0 {
				t.Errorf("%d videos are left, %v, want none", left, err)
			}
			// Its maintenance raises the floors: claims do not read the rows of settled events again.
			for floor, began := int64(0), time.Now(); floor == 0; time.Sleep(100 * time.Millisecond) {
				if err := pool.QueryRow(t.Context(), "SELECT max(floor_seq) FROM video_catalog.outbox_lanes").Scan(&floor); err != nil || time.Since(began) > time.Minute {
					t.Fatalf("floor = %d, %v, want it raised", floor, err)
				}
			}
		})
	}
}
