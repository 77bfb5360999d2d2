package wal

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// relayed runs a publisher with a reader, as a process of the service does, until it is stopped.
func (s *service) relayed() (stop func()) {
	s.Helper()
	pool := s.connect(s.url)
	run, _, err := process(s.Context(), pool, s)
	pgtest.Must(s, err)
	return s.background(run)
}

// process returns a publisher with a reader. wake is for a process that also appends.
func process(ctx context.Context, pool *pgxpool.Pool, broker outbox.Broker) (run func(context.Context), wake func(), err error) {
	r, err := newReader(ctx, &app.Process{CommandPool: pool, Log: discard}, pg.NewOutbox(pool))
	if err != nil {
		return nil, nil, err
	}
	p, err := outbox.New(r, broker, outbox.Config{PollInterval: 20 * time.Millisecond}, discard, noop.Meter{})
	if err != nil {
		return nil, nil, err
	}
	r.wake = p.Wake
	return func(ctx context.Context) {
		var both sync.WaitGroup
		both.Go(func() { _ = p.Run(ctx) })
		both.Go(func() { _ = r.run(ctx) })
		both.Wait()
		pool.Close()
	}, p.Wake, nil
}

// write lets writers append versions of some aggregates, each in a transaction that is held open up to some time, until it is stopped.
func (s *service) write(aggregates int, hold time.Duration) (stop func()) {
	var stops []func()
	for range aggregates {
		aggregate := uuid.NewString()
		stops = append(stops, s.background(func(ctx context.Context) {
			for v := int64(1); ctx.Err() == nil; v++ {
				if err := pgx.BeginFunc(context.Background(), s.pool, func(tx pgx.Tx) error {
					defer time.Sleep(rand.N(hold)) // between the seq and the commit
					return pgtest.TryAppend(context.Background(), tx, message(aggregate, v))
				}); err != nil {
					s.Errorf("append: %v", err)
					return
				}
				s.total.Add(1)
			}
		}))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// complete waits until all events are delivered, and checks their order.
func (s *service) complete() {
	s.Helper()
	pgtest.Eventually(s, 60*time.Second, "all events are delivered", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.first >= int(s.total.Load())
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.wrong) > 0 {
		s.Errorf("%d first deliveries out of order: %q", len(s.wrong), s.wrong[:min(3, len(s.wrong))])
	}
	s.Logf("%d events, %d again, %d refused", s.total.Load(), s.again, s.refused)
}

// writes appends for a while, waits until everything is delivered, and checks the order.
func (s *service) writes(during time.Duration) {
	s.Helper()
	stop := s.write(20, 5*time.Millisecond)
	time.Sleep(during)
	stop()
	s.complete()
}

// inWAL makes a service in mode wal, on a server of its own if it has other settings.
func inWAL(t *testing.T) *service {
	t.Helper()
	s := newService(t)
	s.slot = "1_" + s.slot
	s.must(wal)
	return s
}

// once returns a function that refuses one of so many events, once.
func once(part int) func(envelope.Message) bool {
	refused := make(map[uuid.UUID]bool)
	return func(m envelope.Message) bool {
		isBad := int(m.ID[15])%part == 0 && !refused[m.ID]
		refused[m.ID] = refused[m.ID] || isBad
		return isBad
	}
}

// eventually waits until a query returns a number.
func (s *service) eventually(want int, query string, args ...any) {
	s.Helper()
	pgtest.Eventually(s, 20*time.Second, fmt.Sprintf("%s is %d", query, want), func() bool { return pgtest.Count(s, s.pool, query, args...) == want })
}

const deferredEvents = "SELECT count(*) FROM video_catalog.outbox_deferred"

// The sender of the log is killed a hundred times, responses of the broker are lost, and events are refused.
func TestKilledSender(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	s.lose, s.refuse = 0.01, once(200)
	stop := s.relayed()
	var kills atomic.Int64
	killed := s.background(func(ctx context.Context) {
		for ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
			kills.Add(int64(pgtest.Count(t, s.pool, `SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots
				WHERE slot_name = $1 AND active`, s.slot)))
		}
	})
	writers := s.write(50, 50*time.Millisecond)
	pgtest.Eventually(t, 3*time.Minute, "the sender was killed 100 times", func() bool { return kills.Load() >= 100 })
	killed()
	writers()
	s.complete()
	stop()
}

// table is a broker in the database, for readers in other processes.
type table struct{ pool *pgxpool.Pool }

type written struct{ err error }

func (w written) Wait(context.Context) error { return w.err }

// Publish implements outbox.Broker.
func (b table) Publish(m envelope.Message) outbox.Receipt {
	_, err := b.pool.Exec(context.Background(), "INSERT INTO delivered (aggregate, version) VALUES ($1, $2)", m.AggregateID, m.Version)
	return written{err}
}

const childVariable = "WAL_TEST_READER"

// child is the process of a reader, or of a command for a slot.
func child(url string) {
	if args := os.Args[1:]; len(args) > 0 {
		if err := (&service{slot: args[0]}).program(context.Background(), io.Discard, url, args[1:]...); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	pool, err := db.Open(context.Background(), url, 5, nil)
	if err != nil {
		panic(err)
	}
	run, _, err := process(context.Background(), pool, table{pool})
	if err != nil {
		panic(err)
	}
	run(context.Background())
}

func (s *service) child(name string, args ...string) *os.Process {
	s.Helper()
	program, err := os.Executable()
	pgtest.Must(s, err)
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), childVariable+"="+s.url+"&application_name="+name), os.Stderr
	pgtest.Must(s, cmd.Start())
	s.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process
}

// At its stop a reader does not wait for events that no claim has, while others append.
func TestStoppingReader(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	r, err := newReader(t.Context(), &app.Process{CommandPool: s.connect(s.url), Log: discard}, pg.NewOutbox(s.pool))
	pgtest.Must(t, err)
	r.wake = func() {} // no publisher claims
	stop := s.background(func(ctx context.Context) { _ = r.run(ctx) })
	defer s.write(2, time.Millisecond)()
	pgtest.Eventually(t, 20*time.Second, "events are queued", func() bool { return r.queue.state().isBusy })
	begun := time.Now()
	if stop(); time.Since(begun) > stopTimeout/2 {
		t.Errorf("the stop took %s", time.Since(begun))
	}
}

// A reader that is frozen is replaced within 11 s, and one that is killed within 1 s. One that goes on after its time does no harm.
func TestFrozenAndKilledReaders(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	pgtest.Execute(t, s.pool, "CREATE TABLE delivered (n bigint GENERATED ALWAYS AS IDENTITY, aggregate text, version bigint)")
	processes := make(map[string]*os.Process)
	for _, name := range []string{"a", "b", "c"} {
		processes[name] = s.child(name)
	}
	reader := func() string {
		return strings.Join(pgtest.Column[string](t, s.pool, `SELECT a.application_name FROM pg_replication_slots s
			JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = $1`, s.slot), "")
	}
	pgtest.Eventually(t, 20*time.Second, "the slot is read", func() bool { return reader() != "" })
	writers := s.write(10, 20*time.Millisecond)
	count := func() int { return pgtest.Count(t, s.pool, "SELECT count(*) FROM delivered") }
	replaced := func(limit time.Duration, signal syscall.Signal) string {
		t.Helper()
		sent := count()
		pgtest.Eventually(t, 20*time.Second, "it sends", func() bool { return count() > sent })
		name := reader()
		pgtest.Must(t, processes[name].Signal(signal))
		start := time.Now()
		pgtest.Eventually(t, limit, "another process has the slot", func() bool { now := reader(); return now != "" && now != name })
		t.Logf("%s: replaced after %s", signal, time.Since(start).Round(10*time.Millisecond))
		return name
	}
	frozen := replaced(senderTimeout+5*time.Second, syscall.SIGSTOP) // the machine may be busy
	pgtest.Must(t, processes[frozen].Signal(syscall.SIGCONT))
	for range 5 {
		name := replaced(5*time.Second, syscall.SIGKILL)
		processes[name] = s.child(name)
	}
	writers()
	pgtest.Eventually(t, 30*time.Second, "all events are delivered", func() bool {
		return pgtest.Count(t, s.pool, "SELECT count(DISTINCT (aggregate, version)) FROM delivered") == int(s.total.Load())
	})
	rows, err := s.pool.Query(t.Context(), "SELECT aggregate, version FROM delivered ORDER BY n")
	pgtest.Must(t, err)
	var aggregate string
	var version int64
	_, err = pgx.ForEachRow(rows, []any{&aggregate, &version}, func() error { s.deliver(aggregate, version); return nil })
	pgtest.Must(t, err)
	s.complete()
}
