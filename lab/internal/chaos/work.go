package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// backWithin is how long a process may do nothing of what it is there for once
	// a fault is over, while there is work for it: then it does not come back by
	// itself.
	backWithin = 15 * time.Second
	// shareAfter is how long a publisher may go unseen, when no lane can be leased by
	// a victim any more, before the others leave it something. One that is woken, or whose clock has just found something, looks
	// every few milliseconds; one that has found nothing, every pollInterval. While
	// most lanes are leased, as after a jump of the database's clock, hardly anything
	// is left for it.
	shareAfter = time.Second
	// shareDelay is by how much what the others say to PostgreSQL, and hear from it,
	// is late then.
	shareDelay = 20 * time.Millisecond
)

// tasks are what each process is there for, by name, and how often it has done
// it: who serves clients or projects has commits, as its proxy knows them, and a
// publisher has settlements, as the trigger on the lanes does.
type tasks map[string]int64

// publishing is the task of a publisher.
func publishing(p *process) string { return p.name + " publishes" }

// done returns what has been done by now.
func (l *lab) done(ctx context.Context, c conn) (tasks, error) {
	settled, err := readSettlements(ctx, c)
	if err != nil {
		return nil, err
	}
	done := make(tasks, len(l.processes)+1)
	for _, p := range l.processes {
		if p.role == rolePublisher {
			done[publishing(p)] = settled[p.name]
		}
		if p.serves || p.role == roleProjector {
			done[p.name+" commits"] = int64(p.proxy.committed())
		}
	}
	return done, nil
}

// idle returns the tasks that nobody has done since.
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
		return record.awaitBack(ctx, func(ctx context.Context) (tasks, error) { return l.done(ctx, c) }, l.share)
	})
	if err != nil && ctx.Err() == nil {
		l.problem(NotBack, "after %s (%s): %v", record.Kind, record.Target, err)
		l.showIdle(ctx, record)
	}
}

// share leaves events to the publishers among those that are idle: the others
// become slow. With nobody idle they are as they were.
func (l *lab) share(idle []string) {
	waits := func(p *process) bool { return slices.Contains(idle, publishing(p)) }
	left := slices.ContainsFunc(l.publishers, waits)
	for _, p := range l.publishers {
		if left && !waits(p) {
			p.proxy.slow(shareDelay)
		} else {
			p.proxy.slow(0)
		}
	}
}

// showIdle writes down what those do that are not back: what PostgreSQL knows of
// its clients and of the lanes, into the timeline, and all goroutines of theirs,
// into their logs. That ends them, which belongs to the fault then, and they are
// started anew.
func (l *lab) showIdle(ctx context.Context, record *FaultRecord) {
	var clients, lanes json.RawMessage
	err := l.look(ctx, func(ctx context.Context, c conn) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return c.QueryRow(ctx, `
			SELECT (SELECT json_agg(a) FROM (
					SELECT application_name, state, wait_event_type, wait_event, clock_timestamp() - query_start AS since, left(query, 100) AS query
					FROM pg_stat_activity WHERE datname = current_database()) a),
				(SELECT json_agg(l) FROM (SELECT * FROM video_catalog.outbox_lanes JOIN chaos.holders USING (lane)) l)`).Scan(&clients, &lanes)
	})
	if err != nil {
		l.timeline.add("PostgreSQL says nothing", "err", err.Error())
	} else {
		l.timeline.add("what PostgreSQL knows", "clients", clients, "lanes", lanes)
	}
	for _, p := range l.processes {
		if !strings.Contains(record.LastBack, p.name+" ") {
			continue
		}
		l.timeline.add("goroutines printed", "process", p.name, "count", p.quit())
		record.MayRepeat += 2 * l.mayRepeat(p)
		record.MayFail = record.MayFail || p.serves
		if err := p.start(ctx); err != nil {
			l.problem(ProcessEnded, "%s: %v", p.name, err)
		}
		record.Ended = time.Now()
	}
}

// awaitBack records when the last task was done again, and which one it was.
// share is told who is idle once that has lasted for shareAfter, and at the end
// that nobody is.
func (f *FaultRecord) awaitBack(ctx context.Context, done func(context.Context) (tasks, error), share func(idle []string)) error {
	ctx, cancel := context.WithDeadline(ctx, f.Ended.Add(backWithin))
	defer cancel()
	defer share(nil)
	shared := f.Ended.Add(shareAfter)
	if taken := f.Struck.Add(lease + shareAfter); f.Recovery == Takeover && taken.After(shared) {
		shared = taken
	}
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
			if time.Now().After(shared) {
				share(idle)
			}
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return errors.Join(fmt.Errorf("not seen within %s: %s", backWithin, f.LastBack), err)
		}
	}
}
