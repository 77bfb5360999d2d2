package chaos

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

type conn = *pgx.Conn

// look calls f with a connection that uses no proxy.
func (l *lab) look(ctx context.Context, f func(context.Context, conn) error) error {
	c, err := l.postgres.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	return f(ctx, c)
}

// each calls f for each row of a query, whose columns are then in to.
func each(ctx context.Context, db querier, what, sql string, to []any, f func() error, args ...any) error {
	rows, _ := db.Query(ctx, sql, args...) // ForEachRow returns the error of the query, too
	if _, err := pgx.ForEachRow(rows, to, f); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const (
	// quietWithin is how long quiet waits without any change once all faults are over
	// and clients have stopped. It is longer than any pause before a retry.
	quietWithin = time.Minute
	// lentFor is the time without any change after which the lab assumes that a killed
	// projector still has the leases of messages.
	lentFor = 3 * time.Second
)

// quiet waits until every event is published and consumed. The leases of a killed
// projector last a minute, so quiet moves the clock of the broker. It does this
// only while nothing changes: running projectors lose their leases, too.
func (l *lab) quiet(ctx context.Context) {
	start := time.Now()
	l.drained(ctx, start.Add(quietWithin)) // in mode wal the tables do not say what is left
	moved, lent := time.Now(), time.Now()
	state := "the database is unreachable"
	for ; time.Since(moved) < quietWithin && ctx.Err() == nil; sleep(ctx, 250*time.Millisecond) {
		quiet, now := false, state
		err := l.look(ctx, func(ctx context.Context, c conn) error {
			var pending, blocked int
			err := c.QueryRow(ctx, `SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred), (SELECT count(*) FROM video_catalog.outbox_blocked)`).Scan(&pending, &blocked)
			taken, heard := l.broker.published()
			acked := l.broker.acknowledged()
			quiet = pending+blocked == 0 && acked == taken && taken == heard
			now = fmt.Sprintf("%d pending, %d blocked, %d of %d messages acknowledged, %d heard", pending, blocked, acked, taken, heard)
			return err
		})
		if err != nil {
			l.timeline.InfoContext(ctx, "not quiet", "err", err.Error())
			continue
		}
		if quiet {
			l.timeline.InfoContext(ctx, "quiet", "after_ms", time.Since(start).Milliseconds())
			return
		}
		if now != state {
			l.timeline.InfoContext(ctx, "not quiet", "state", now)
			state, moved, lent = now, time.Now(), time.Now()
		}
		if time.Since(lent) > lentFor {
			l.broker.expire()
			lent = time.Now()
		}
	}
	l.problem(NotQuiet, "nothing has moved for %s, with all faults over: %s", quietWithin, state)
}

// Routines is the number of goroutines of an idle process at the end of the run,
// and of a new process.
type Routines struct {
	Process string        `json:"process"`
	Age     time.Duration `json:"age_ns"`
	Found   int           `json:"found"`
	Fresh   int           `json:"fresh"`
}

// manyMore is how many goroutines more than a new process a process may have. Idle
// connections account for fewer. It does not find a smaller leak, or one that
// exists only while a process works.
const manyMore = 50

// judge reports a goroutine leak, or that the goroutines could not be counted.
func (r Routines) judge(problem func(Rule, string, ...any)) {
	switch {
	case r.Found == 0 || r.Fresh == 0:
		problem(NotCounted, "goroutines of %s: %d after %s, %d when fresh; see its log", r.Process, r.Found, r.Age, r.Fresh)
	case r.Found > r.Fresh+manyMore:
		problem(GoroutineLeaked, "%s had %d goroutines after %s, a fresh one has %d; see %s.log", r.Process, r.Found, r.Age, r.Fresh, r.Process)
	}
}

// countRoutines ends the oldest process of each role by SIGQUIT, after which Go
// prints all goroutines. Then it does the same with a new process.
func (l *lab) countRoutines(ctx context.Context) {
	var wait sync.WaitGroup
	found := make([]Routines, 3)
	for i, role := range [][]*process{l.apis, l.publishers, l.projectors} {
		wait.Go(func() {
			p := role[0]
			for _, other := range role { // the oldest of the role
				if a, b := other.running(), p.running(); a != nil && b != nil && a.started.Before(b.started) {
					p = other
				}
			}
			e := p.running()
			if e == nil {
				l.problem(NotCounted, "goroutines: %s does not run at the end", p.name)
				return
			}
			r := Routines{Process: p.name, Age: time.Since(e.started), Found: p.quit()}
			if err := p.start(ctx); err != nil {
				l.problem(ProcessEnded, "%s cannot be started at the end: %v", p.name, err)
				return
			}
			sleep(ctx, 2*time.Second)
			r.Fresh = p.quit()
			found[i] = r
			r.judge(l.problem)
		})
	}
	wait.Wait()
	l.routines = found
}

var goroutine = regexp.MustCompile(`(?m)^goroutine \d+ .*\[`)

// quit ends the process by SIGQUIT, and returns its number of goroutines. It
// returns 0 if the process does not print them in time.
func (p *process) quit() int {
	e := p.running()
	if e == nil {
		return 0
	}
	p.expect(e, false)
	path := filepath.Join(p.dir, p.name+".log")
	before, _ := os.ReadFile(path) //nolint:gosec // its log
	p.signal(syscall.SIGQUIT)
	select {
	case <-e.done:
	case <-time.After(stopBudget):
		p.kill()
	}
	after, _ := os.ReadFile(path) //nolint:gosec // its log
	return len(goroutine.FindAll(after[min(len(before), len(after)):], -1))
}

// stopAll stops all processes as a deployment does.
func (l *lab) stopAll() {
	var wait sync.WaitGroup
	took := make([]time.Duration, len(l.processes))
	for i, p := range l.processes {
		wait.Go(func() { took[i] = p.stop() })
	}
	wait.Wait()
	for _, d := range took {
		l.slowestStop = max(l.slowestStop, d)
	}
}

// countHeld counts the connections of each process to PostgreSQL when all events
// are processed. It uses the counts of its proxy and of PostgreSQL. Too many
// connections, or a transaction that stays open, are a leak. Connections that have
// just ended get two seconds to disappear.
func (l *lab) countHeld(ctx context.Context) {
	var leaks []string
	var err error
	most := maxConnections
	if l.cfg.Relay == RelayWAL {
		most++ // for the log
	}
	for range 20 {
		connections := map[string]int{}
		var open []string
		err = l.look(ctx, func(ctx context.Context, c conn) (err error) {
			connections, open, err = readConnections(ctx, c)
			return err
		})
		for _, p := range l.processes {
			connections[p.name] = max(connections[p.name], p.proxy.open())
		}
		if leaks = tooMany(connections, open, most); err == nil {
			if l.connections = connections; len(leaks) == 0 {
				return
			}
		}
		sleep(ctx, 100*time.Millisecond)
	}
	if err != nil {
		l.problem(NotCounted, "connections of the processes: %v", err)
		return
	}
	for _, leak := range leaks {
		l.problem(ConnectionLeaked, "%s", leak)
	}
}

// tooMany returns the processes with more connections than allowed, and the
// transactions that stay open.
func tooMany(connections map[string]int, open []string, most int) (leaks []string) {
	for _, name := range slices.Sorted(maps.Keys(connections)) {
		if n := connections[name]; n > most {
			leaks = append(leaks, fmt.Sprintf("%s has %d connections, and may have %d", name, n, most))
		}
	}
	return append(leaks, open...)
}

// readConnections counts the connections by process, and describes transactions
// that are open for too long.
func readConnections(ctx context.Context, c conn) (connections map[string]int, open []string, err error) {
	connections = make(map[string]int)
	const sql = `
		SELECT application_name, count(*)::int,
			count(*) FILTER (WHERE xact_start < clock_timestamp() - make_interval(secs => $1))::int
		FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
		GROUP BY 1`
	var name string
	var n, stands int
	err = each(ctx, c, "count connections", sql, []any{&name, &n, &stands}, func() error {
		connections[name] = n
		if stands > 0 {
			open = append(open, fmt.Sprintf("%s has %d transactions that have been open for more than %s", name, stands, openFor))
		}
		return nil
	}, openFor.Seconds())
	return connections, open, err
}

// openFor is longer than any transaction of the service when all events are
// processed.
const openFor = 10 * time.Second

// erasuresWithin is how long the erasure of purged videos may take at the end. Each process
// with the role api or publisher erases when it starts.
const erasuresWithin = 20 * time.Second

// quietErasures waits until the events and requests of purged videos are erased, or until
// erasuresWithin. The checker finds what is left.
func (l *lab) quietErasures(ctx context.Context) {
	p, again := l.apis[0], time.Now().Add(erasuresWithin/2)
	for start, left := time.Now(), 1; left > 0 && time.Since(start) < erasuresWithin; sleep(ctx, 50*time.Millisecond) {
		if err := l.ask(ctx, &left, `SELECT count(*)::int FROM video_catalog.erasures`); err != nil {
			return
		}
		if left > 0 && time.Now().After(again) && p.running() == nil {
			if err := p.start(ctx); err != nil {
				l.problem(ProcessEnded, "%s cannot be started at the end: %v", p.name, err)
			}
		}
	}
}

// hearAll waits until the subscription has received all messages. It is called
// when nobody publishes any more.
func (l *lab) hearAll(ctx context.Context) {
	for start, lent := time.Now(), time.Now(); time.Since(start) < watchersWithin && ctx.Err() == nil; sleep(ctx, 20*time.Millisecond) {
		if taken, heard := l.broker.published(); taken == heard {
			return
		}
		if time.Since(lent) > lentFor {
			l.broker.expire()
			lent = time.Now()
		}
	}
}

// countConnections reports connections and locks that are left in PostgreSQL after
// all processes have ended.
func (l *lab) countConnections(ctx context.Context) {
	left := 0
	var locks int
	var err error
	for range 20 {
		err = l.look(ctx, func(ctx context.Context, c conn) error {
			return c.QueryRow(ctx, `
				SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()),
					(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') + (SELECT count(*) FROM pg_prepared_xacts)`).Scan(&left, &locks)
		})
		if err == nil && left+locks == 0 {
			break
		}
		sleep(ctx, 100*time.Millisecond)
	}
	if err != nil {
		l.problem(NotCounted, "connections that are left: %v", err)
	}
	for _, p := range l.processes {
		left += p.proxy.open()
	}
	if left+locks > 0 {
		l.problem(ConnectionLeaked, "%d connections and %d locks are left when all processes have ended", left, locks)
	}
}

// watchersWithin is how long a watcher may take to receive the last change. It may
// have just lost its stream, and start from the beginning.
const watchersWithin = 20 * time.Second

// quietWatchers waits until all watchers have what the catalog shows, or until
// watchersWithin. The checker compares them.
func (l *lab) quietWatchers(ctx context.Context) {
	db := Database{Catalog: map[uuid.UUID]Entry{}}
	err := l.look(ctx, func(ctx context.Context, c conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return readCatalog(ctx, tx, &db) })
	})
	if err != nil {
		l.timeline.InfoContext(ctx, "cannot read the catalog", "err", err.Error())
		return
	}
	start := time.Now()
	differ := -1
	for ; differ != 0 && time.Since(start) < watchersWithin && ctx.Err() == nil; sleep(ctx, 50*time.Millisecond) {
		differ = 0
		for _, w := range l.watchers {
			w.locked(func(c *Copy) { differ += c.differs(db.Catalog) })
		}
	}
	l.timeline.InfoContext(ctx, "watchers", "differ", differ, "after_ms", time.Since(start).Milliseconds())
}
