package app

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// One loop that is stuck, here a maintenance, makes the process stuck. A process without loops is live.
func TestStuckMaintenanceIsNotLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := heartbeat.New("first", 2*time.Hour), heartbeat.New("second", 2*time.Hour)
		g := Process{group: new(errgroup.Group), loops: t.Context()}
		if err := g.stuck(); err != nil {
			t.Errorf("stuck() of no loops = %v, want nil", err)
		}
		for _, loop := range []*heartbeat.Loop{first, second} {
			g.Go("test", func(context.Context) error { return nil }, loop.Check)
		}
		first.Beat()
		second.Beat()
		time.Sleep(5 * time.Hour)
		first.Beat()
		time.Sleep(2 * time.Hour)
		if err := g.stuck(); err == nil {
			t.Error("stuck() = nil after 7 h, want that the second is stuck")
		}
		second.Beat()
		if err := g.stuck(); err != nil {
			t.Errorf("stuck() = %v after the second has come by, want nil", err)
		}
		_ = g.group.Wait() // nothing fails
	})
}
