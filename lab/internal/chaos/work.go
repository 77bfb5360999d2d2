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
	// backWithin is the time in which a process must work again after a fault is over, if there is work for it.
	// Otherwise it does not recover by itself.
	backWithin = 15 * time.Second
	// shareAfter is how long a publisher may be idle once no victim can hold a lane. After that the lab slows down the
	// others, so that it gets events. A publisher that was woken or has just found events polls every few milliseconds.
	// The pauses of one that finds nothing grow to pollInterval. While most lanes are leased, the others leave it almost
	// nothing.
	shareAfter = time.Second
	// shareDelay is the delay of the other publishers' traffic with PostgreSQL from then on.
	shareDelay = 20 * time.Millisecond
)

// tasks maps the tasks of all processes to how often each was done. Processes that serve clients or project have
// commits, which their proxy counts. Publishers have settlements, which the trigger on the lanes counts.
type tasks map[string]int64

// publishing returns the name of a publisher's task.
func publishing(p *process) string { return p.name + " publishes" }

// done returns the present counts.
func (l *lab) done(ctx context.Context, c conn) (tasks, error) {
	settled, err := readSettlements(ctx, c)
	if err != nil {
		return nil, err
	}
	done := make(tasks, len(l.processes)+1)
	for _, p := range l.processes {
		if p.role == rolePublisher && l.cfg.Relay == RelayLanes { // in mode wal one publishes
			done[publishing(p)] = settled[p.name]
		}
		if p.serves || p.role == roleProjector {
			done[p.name+" commits"] = int64(p.proxy.committed())
		}
	}
	return done, nil
}

// idle returns the tasks that were not done between t and now.
func (t tasks) idle(now tasks) (idle []string) {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if now[name] <= t[name] {
			idle = append(idle, name)
		}
	}
	return idle
}

// back waits until every process works again after a measured fault. It is called at the end of the fault.
func (l *lab) back(ctx context.Context, record *FaultRecord) {
	err := l.look(ctx, func(ctx context.Context, c conn) error {
		return record.awaitBack(ctx, l.patience(backWithin), func(ctx context.Context) (tasks, error) { return l.done(ctx, c) }, l.share)
	})
	if err != nil && ctx.Err() == nil {
		l.problem(NotBack, "after %s (%s): %v", record.Kind, record.Target, err)
		l.showIdle(ctx, record)
	}
}

// share slows down the busy publishers if some are idle, so that the idle ones get events. Otherwise all run at normal
// speed.
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

// showIdle records why processes do not work: the clients and lanes of PostgreSQL in the timeline, and the goroutines of
// the processes in their logs. That ends the processes, so it counts as part of the fault, and they are started again.
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
		l.timeline.InfoContext(ctx, "no state from PostgreSQL", "err", err.Error())
	} else {
		l.timeline.InfoContext(ctx, "state in PostgreSQL", "clients", clients, "lanes", lanes)
	}
	for _, p := range l.processes {
		if !strings.Contains(record.LastBack, p.name+" ") {
			continue
		}
		l.timeline.InfoContext(ctx, "goroutines printed", "process", p.name, "count", p.quit())
		record.MayRepeat += 2 * l.mayRepeat(p)
		record.MayFail = record.MayFail || p.serves
		if err := p.start(ctx); err != nil {
			l.problem(ProcessEnded, "%s: %v", p.name, err)
		}
		record.Ended = time.Now()
	}
}

// awaitBack waits within a time until every task was done again, and records how long that took and which task was last. After
// shareAfter it calls share with the idle tasks, and at the end with none.
func (f *FaultRecord) awaitBack(ctx context.Context, within time.Duration, done func(context.Context) (tasks, error), share func(idle []string)) error {
	ctx, cancel := context.WithDeadline(ctx, f.Ended.Add(within))
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
		case err != nil: // the next round tries again
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
			return errors.Join(fmt.Errorf("not seen within %s: %s", within, f.LastBack), err)
		}
	}
}
