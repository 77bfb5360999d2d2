package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// group runs the loops of a process. The first error ends all of them.
type group struct {
	*errgroup.Group
	stopping context.Context // ends when the process is to stop, or a loop has failed
	loops    context.Context // ends when the last request is answered
	stop     context.CancelFunc
	checks   []func() error // of liveness
}

func newGroup(ctx context.Context) *group {
	g := new(group)
	g.loops, g.stop = context.WithCancel(context.WithoutCancel(ctx))
	g.Group, g.stopping = errgroup.WithContext(ctx)
	return g
}

// start runs a loop.
func (g *group) start(name string, run func(context.Context) error, stuck func() error) {
	if stuck != nil {
		g.checks = append(g.checks, stuck)
	}
	g.Go(func() error {
		if err := run(g.loops); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// serve runs the server, and then ends the loops.
func (g *group) serve(run func(context.Context) error) error {
	g.Go(func() error {
		defer g.stop()
		return run(g.stopping)
	})
	return g.Wait()
}

// end ends the loops of a process whose server never ran.
func (g *group) end() {
	g.stop()
	_ = g.Wait() // the start has failed for another reason
}

// stuck is the liveness check: it returns an error that names every stuck loop. The platform
// then restarts the process.
func (g *group) stuck() error {
	var errs []error
	for _, check := range g.checks {
		errs = append(errs, check())
	}
	return errors.Join(errs...)
}

// closeInTime calls end, and waits at most closeTimeout.
func closeInTime(end func()) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		end()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout): // the process ends, and with it the rest of the work
	}
}
