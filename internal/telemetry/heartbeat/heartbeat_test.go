package heartbeat_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// A loop is stuck when it has been silent for more than three intervals, and
// not while it rests.
func TestSilenceOfThreeIntervalsIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beats, rests, silent := heartbeat.New("beats", time.Second), heartbeat.New("rests", time.Second), heartbeat.New("silent", time.Second)
		beats.Beat()
		rests.Beat()
		silent.Beat()
		time.Sleep(3 * time.Second)
		if err := heartbeat.Check(beats, rests, silent); err != nil {
			t.Errorf("Check() after three intervals = %v, want nil", err)
		}
		beats.Beat()
		rests.Rest()
		time.Sleep(time.Millisecond)
		err := heartbeat.Check(beats, rests, silent)
		if err == nil || !strings.HasPrefix(err.Error(), "silent has not come by for 3.001s") || strings.Contains(err.Error(), "\n") {
			t.Errorf("Check() = %v, want that only silent is stuck", err)
		}
		silent.Beat()
		if err := heartbeat.Check(silent); err != nil {
			t.Errorf("Check() after a beat = %v, want nil", err)
		}
	})
}

// A loop that has not begun is not stuck.
func TestLoopThatHasNotBegunIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loop := heartbeat.New("loop", time.Second)
		time.Sleep(time.Hour)
		if err := loop.Check(); err != nil {
			t.Errorf("Check() = %v, want nil", err)
		}
	})
}
