// Package heartbeat tells a loop that is stuck from one that waits or works.
//
// A loop that is stuck is one that has not come by for three times as long as
// it may take at most between two times. Nothing in the process will set it
// going again, so that such a process should be started anew; a loop that only
// fails, because a database or a broker is away, comes by and is not stuck.
//
// A process that gets no CPU, as between two requests on Cloud Run, does not
// come by either. It does as soon as it runs again, so a probe that needs to
// fail twice before the process is ended does not end it for that.
package heartbeat

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Loop is what a loop shows of itself. Safe for concurrent use.
type Loop struct {
	name     string
	interval time.Duration

	mu   sync.Mutex
	last time.Time // guarded by mu; zero while it rests
}

// New makes the heart of a loop that comes by every interval at the latest.
// Until it beats for the first time, it rests.
func New(name string, interval time.Duration) *Loop {
	return &Loop{name: name, interval: interval}
}

// Beat says that the loop has come by.
func (l *Loop) Beat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
}

// Rest says that the loop waits for what may never happen, or has ended.
func (l *Loop) Rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Time{}
}

// Check returns an error when the loop is stuck.
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

// Check returns an error that names every loop that is stuck.
func Check(loops ...*Loop) error {
	errs := make([]error, len(loops))
	for i, l := range loops {
		errs[i] = l.Check()
	}
	return errors.Join(errs...)
}
