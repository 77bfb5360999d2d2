// Package heartbeat detects loops that are stuck.
//
// A loop is stuck after three intervals without a beat; the process should then be restarted. A
// loop that only fails, because a database or a broker is unavailable, still beats. In a
// process without CPU, as between two requests on Cloud Run, no loop beats until it runs again.
// A probe should therefore restart a process only after two failures.
package heartbeat

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Loop is the heartbeat of one loop. It is safe for concurrent use.
type Loop struct {
	name     string
	interval time.Duration
	last     atomic.Pointer[time.Time] // nil while the loop rests
}

// New returns a Loop that must beat at least once per interval. It rests until its first beat.
func New(name string, interval time.Duration) *Loop { return &Loop{name: name, interval: interval} }

// Beat records that the loop is running.
func (l *Loop) Beat() { l.last.Store(new(time.Now())) }

// Rest records that the loop has ended, or waits for something that may never happen.
func (l *Loop) Rest() { l.last.Store(nil) }

// Check returns an error if the loop is stuck.
func (l *Loop) Check() error {
	last := l.last.Load()
	if last == nil || time.Since(*last) <= 3*l.interval {
		return nil
	}
	return fmt.Errorf("%s has not come by for %s, it should every %s", l.name, time.Since(*last).Round(time.Millisecond), l.interval)
}

// Check returns an error that names every stuck loop.
func Check(loops ...*Loop) error {
	errs := make([]error, len(loops))
	for i, l := range loops {
		errs[i] = l.Check()
	}
	return errors.Join(errs...)
}
