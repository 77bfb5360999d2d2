package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// backWithin is how long a process may do nothing of what it is there for once
// a fault is over, while clients have work for all of them: then it does not come
// back by itself.
const backWithin = 15 * time.Second

// tasks are what each process is there for, by name, and how often it has done
// it: who serves clients or projects has commits, as its proxy knows them, and a
// publisher has settlements, as the trigger on the lanes does.
type tasks map[string]int64

// done answers what has been done by now. The settlements of a publisher are
// the number of its last one in the order of all of them, which grows as well.
func (l *lab) done(ctx context.Context, c conn) (tasks, error) {
	settled, err := readSettlers(ctx, c)
	if err != nil {
		return nil, err
	}
	done := make(tasks, len(l.processes)+1)
	for _, p := range l.processes {
		if p.role == rolePublisher {
			done[p.name+" publishes"] = settled[p.name]
		}
		if p.serves || p.role == roleProjector {
			done[p.name+" commits"] = int64(p.proxy.committed())
		}
	}
	return done, nil
}

// idle answers the tasks that nobody has done since.
func (t tasks) idle(now tasks) (idle []string) {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if now[name] <= t[name] {
			idle = append(idle, name)
		}
	}
	return idle
}

// back waits until every process works again after a measured fault, which has
// just ended.
func (l *lab) back(ctx context.Context, record *FaultRecord) {
	err := l.look(ctx, func(ctx context.Context, c conn) error {
		return record.awaitBack(ctx, func(ctx context.Context) (tasks, error) { return l.done(ctx, c) })
	})
	if err != nil && ctx.Err() == nil {
		l.problem(NotBack, "after %s (%s): %v", record.Kind, record.Target, err)
	}
}

// awaitBack records when the last task was done again, and which one it was.
func (f *FaultRecord) awaitBack(ctx context.Context, done func(context.Context) (tasks, error)) error {
	ctx, cancel := context.WithDeadline(ctx, f.Ended.Add(backWithin))
	defer cancel()
	var before tasks
	for {
		now, err := done(ctx)
		switch {
		case err != nil: // it is asked again
		case before == nil:
			before = now
		default:
			idle := before.idle(now)
			if len(idle) == 0 {
				f.Back = time.Since(f.Ended)
				return nil
			}
			f.LastBack = strings.Join(idle, ", ")
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return errors.Join(fmt.Errorf("not seen within %s: %s", backWithin, f.LastBack), err)
		}
	}
}
