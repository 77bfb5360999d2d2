// Package heartbeat detects loops that are stuck.
//
// A running loop must call Beat at least once per interval. It is stuck after
// three intervals without a beat. Nothing inside the process can resume it, so the
// process should be restarted. A loop that only fails, because a database or a
// broker is unavailable, still beats and is not stuck.
//
// A process without CPU, as between two requests on Cloud Run, does not beat
// either, but beats again as soon as it runs. A probe should therefore restart a
// process only after two failures.
package heartbeat

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Loop is the heartbeat of one loop. It is safe for concurrent use.
type Loop struct {
	name     string
	interval time.Duration

	mu   sync.Mutex
	last time.Time // zero while the loop rests; guarded by mu
}

// New returns a Loop that must beat at least once per interval. It rests until
// its first beat.
func New(name string, interval time.Duration) *Loop {
	return &Loop{name: name, interval: interval}
}

// Beat records that the loop is running.
func (l *Loop) Beat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
}

// Rest records that the loop has ended, or waits for something that may never
// happen. A resting loop is never stuck.
func (l *Loop) Rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Time{}
}

// Check returns an error if the loop is stuck.
func (l *Loop) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.IsZero() {
		return nil
	}
	if silence := time.Since(l.last); silence > 3*l.interval {
		return fmt.Errorf("%s has not come by for %s, it should every %s", l.name, silence.Round(time.Millisecond), l.interval)
	}
	return nil
}

// Check returns an error that names every stuck loop.
func Check(loops ...*Loop) error {
	errs := make([]error, len(loops))
	for i, l := range loops {
		errs[i] = l.Check()
	}
	return errors.Join(errs...)
}
