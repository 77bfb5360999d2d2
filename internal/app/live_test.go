package app

import (
	"testing"
	"testing/synctest"
	"time"
)

// One loop that is stuck, here a maintenance, makes the process stuck. A process without loops is live.
func TestStuckMaintenanceIsNotLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := maintenanceLoop("first"), maintenanceLoop("second")
		check := live(first.Check, second.Check)
		first.Beat()
		second.Beat()
		time.Sleep(5 * time.Hour)
		first.Beat()
		time.Sleep(2 * time.Hour)
		if err := check(); err == nil {
			t.Error("live() = nil after 7 h, want that the second is stuck")
		}
		second.Beat()
		if err := check(); err != nil {
			t.Errorf("live() = %v after the second has come by, want nil", err)
		}
		if err := live()(); err != nil {
			t.Errorf("live() of no loops = %v, want nil", err)
		}
	})
}
