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

// look opens a connection, past the proxies, for one look at the database.
func (l *lab) look(ctx context.Context, f func(context.Context, conn) error) error {
	c, err := l.postgres.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	return f(ctx, c)
}

const (
	// quietWithin is how long everything may stand still once nothing is broken
	// and nobody writes: more than the longest pause of anything that retries.
	quietWithin = time.Minute
	// lentFor is how long nothing may move before the lab believes that what is
	// missing is lent to a projector that was killed.
	lentFor = 3 * time.Second
)

// quiet waits until every event went all the way. Messages that a killed
// projector had are lent to it for a minute; the clock of the broker makes that
// pass, but only while nothing moves, because what is lent to the living comes
// again, too, and all that follows it in its key.
func (l *lab) quiet(ctx context.Context) {
	start := time.Now()
	moved, lent := start, start
	state := "the database does not answer"
	for ; time.Since(moved) < quietWithin && ctx.Err() == nil; sleep(ctx, 250*time.Millisecond) {
		quiet, now := false, state
		err := l.look(ctx, func(ctx context.Context, c conn) error {
			var pending, blocked, events, consumed int
			err := c.QueryRow(ctx, `SELECT (SELECT count(*) FROM video_catalog.outbox_pending), (SELECT count(*) FROM video_catalog.outbox_blocked),
				(SELECT count(*) FROM video_catalog.outbox), (SELECT count(*) FROM video_catalog_read.inbox)`).Scan(&pending, &blocked, &events, &consumed)
			taken, heard := l.broker.published()
			quiet = pending+blocked == 0 && events == consumed && taken == heard
			now = fmt.Sprintf("%d pending, %d blocked, %d of %d events consumed, %d of %d messages heard", pending, blocked, consumed, events, heard, taken)
			return err
		})
		if err != nil {
			l.timeline.add("not quiet", "err", err.Error())
			continue
		}
		if quiet {
			l.timeline.add("quiet", "after_ms", time.Since(start).Milliseconds())
			return
		}
		if now != state {
			l.timeline.add("not quiet", "state", now)
			state, moved, lent = now, time.Now(), time.Now()
		}
		if time.Since(lent) > lentFor {
			l.broker.clock.Advance(messageLease)
			lent = time.Now()
		}
	}
	l.problem(NotQuiet, "nothing has moved for %s, with all faults over: %s", quietWithin, state)
}

// Routines are the goroutines of a process that has nothing to do, after all
// that has happened to it, beside those of a fresh one.
type Routines struct {
	Process string        `json:"process"`
	Age     time.Duration `json:"age_ns"`
	Found   int           `json:"found"`
	Fresh   int           `json:"fresh"`
}

// manyMore goroutines than a fresh process has are a leak: fewer come and go
// with idle connections. The fresh one is two seconds old and has done nothing, so
// what grows by less than that, or only while a process works, is not found.
const manyMore = 50

// judge looks for a leak, and whether the goroutines were counted at all.
func (r Routines) judge(problem func(Rule, string, ...any)) {
	switch {
	case r.Found == 0 || r.Fresh == 0:
		problem(NotCounted, "goroutines of %s: %d after %s, %d when fresh; see its log", r.Process, r.Found, r.Age, r.Fresh)
	case r.Found > r.Fresh+manyMore:
		problem(GoroutineLeaked, "%s had %d goroutines after %s, a fresh one has %d; see %s.log", r.Process, r.Found, r.Age, r.Fresh, r.Process)
	}
}

// countRoutines ends the oldest process of each role by SIGQUIT, upon which Go
// prints all goroutines, and a fresh one likewise.
func (l *lab) countRoutines(ctx context.Context) {
	var wait sync.WaitGroup
	found := make([]Routines, 3)
	for i, role := range [][]*process{l.apis, l.publishers, l.projectors} {
		wait.Go(func() {
			p := role[0]
			for _, other := range role { // the one that has seen most
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

// quit ends the process and returns how many goroutines it had; 0 when it does
// not say so in time.
func (p *process) quit() int {
	e := p.running()
	if e == nil {
		return 0
	}
	p.expect(e)
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

// stopAll ends all processes as a deployment does.
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

// countHeld counts the connections that each process has to PostgreSQL while
// all is quiet, as its proxy knows them and as PostgreSQL does: more than it may
// have, or a transaction that stands open, is a leak. What has just ended gets two
// seconds to be gone.
func (l *lab) countHeld(ctx context.Context) {
	var leaks []string
	var err error
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
		if leaks = tooMany(connections, open, maxConnections); err == nil {
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

// tooMany says who has more connections than it may, and which transactions
// stand open.
func tooMany(connections map[string]int, open []string, most int) (leaks []string) {
	for _, name := range slices.Sorted(maps.Keys(connections)) {
		if n := connections[name]; n > most {
			leaks = append(leaks, fmt.Sprintf("%s has %d connections, and may have %d", name, n, most))
		}
	}
	return append(leaks, open...)
}

// readConnections counts the connections by the name of the process, and
// describes transactions that have been open for longer than any of the
// service's is.
func readConnections(ctx context.Context, c conn) (connections map[string]int, open []string, err error) {
	connections = make(map[string]int)
	rows, err := c.Query(ctx, `
		SELECT application_name, count(*)::int,
			count(*) FILTER (WHERE xact_start < clock_timestamp() - make_interval(secs => $1))::int
		FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
		GROUP BY 1`, openFor.Seconds())
	if err != nil {
		return connections, nil, fmt.Errorf("count connections: %w", err)
	}
	var name string
	var n, stands int
	_, err = pgx.ForEachRow(rows, []any{&name, &n, &stands}, func() error {
		connections[name] = n
		if stands > 0 {
			open = append(open, fmt.Sprintf("%s has %d transactions that have been open for more than %s", name, stands, openFor))
		}
		return nil
	})
	if err != nil {
		return connections, nil, fmt.Errorf("count connections: %w", err)
	}
	return connections, open, nil
}

// openFor is longer than any transaction of the service takes when all is quiet.
const openFor = 10 * time.Second

// hearAll waits until the subscription has brought what the broker took at
// last: nobody publishes any more.
func (l *lab) hearAll(ctx context.Context) {
	for start, lent := time.Now(), time.Now(); time.Since(start) < watchersWithin && ctx.Err() == nil; sleep(ctx, 20*time.Millisecond) {
		if taken, heard := l.broker.published(); taken == heard {
			return
		}
		if time.Since(lent) > lentFor {
			l.broker.clock.Advance(messageLease)
			lent = time.Now()
		}
	}
}

// countConnections looks for what the processes have left with PostgreSQL.
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

// watchersWithin is how long a watcher may take to see the last change: it may
// have just lost its stream, and begin with nothing.
const watchersWithin = 20 * time.Second

// quietWatchers waits until all watchers have what the catalog shows. Whether
// they have, the checker judges.
func (l *lab) quietWatchers(ctx context.Context) {
	db := Database{Catalog: map[uuid.UUID]Entry{}}
	err := l.look(ctx, func(ctx context.Context, c conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return readCatalog(ctx, tx, &db) })
	})
	if err != nil {
		l.timeline.add("cannot read the catalog", "err", err.Error())
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
	l.timeline.add("watchers", "differ", differ, "after_ms", time.Since(start).Milliseconds())
}
