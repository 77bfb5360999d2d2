package wal

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

// Under load, with transactions that commit in another order than they begin, switches in both directions lose no event, and first
// deliveries stay in order. The reader is stopped at random, also before it confirms.
func TestSwitchUnderLoad(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.publish()
	writers := s.write(30, 20*time.Millisecond)
	const switches = 6
	for range switches / 2 {
		time.Sleep(100 * time.Millisecond)
		s.must(external)
		stopReader := s.read(0.1)
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		stopReader()
		s.must(lanes)
	}
	writers()
	s.complete()
	if n := pgtest.Count(t, s.pool, "SELECT count(*) FROM video_catalog.audit WHERE action = 'outbox.relay' AND actor = 'ann' AND reason = 'test'"); n != switches {
		t.Errorf("the audit has %d switches, want %d", n, switches)
	}
}

// openAppend appends versions in a transaction that stays open, and returns its commit. Without versions the transaction only has an id.
func (s *service) openAppend(aggregate string, versions ...int64) (commit func()) {
	s.Helper()
	tx, err := s.pool.Begin(s.Context())
	pgtest.Must(s, err)
	pgtest.Execute(s, tx, "SELECT pg_current_xact_id()")
	for _, v := range versions {
		pgtest.Append(s, tx, message(aggregate, v))
	}
	return func() {
		pgtest.Must(s, tx.Commit(s.Context()))
		s.total.Add(int64(len(versions)))
	}
}

// start runs a switch, and returns its result.
func (s *service) start(mode string) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := s.relay(mode)
		result <- err
	}()
	return result
}

// waiting waits until some sessions wait for a lock of the relay, or of what is pending.
func (s *service) waiting(sessions int) {
	s.Helper()
	pgtest.Eventually(s, 10*time.Second, "sessions wait for the relay", func() bool {
		return pgtest.Count(s, s.pool, "SELECT count(*) FROM pg_locks WHERE relation IN ('video_catalog.outbox_relay'::regclass, 'video_catalog.outbox_pending'::regclass) AND NOT granted") >= sessions
	})
}

func (s *service) await(result <-chan error) {
	s.Helper()
	if err := <-result; err != nil {
		s.Fatalf("the switch = %v", err)
	}
}

// The narrow windows: a transaction has drawn its place, and commits late. The switch waits for it, and the next event of its aggregate comes
// behind it, although another has drawn its seq before the switch.
func TestSwitchWaitsForATransaction(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ from, to string }{{lanes, external}, {lanes, wal}, {wal, lanes}} {
		t.Run(test.from+" to "+test.to, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			if s.makeSlot(); test.from != lanes { // a new one would wait, too
				s.must(test.from)
			}
			s.append("first", 1)
			result := s.start(test.to)
			s.eventually(1, holding) // and again, as nobody publishes that event
			commit := s.openAppend("held", 1)
			defer s.relayed()()
			s.waiting(1)
			late := make(chan error, 1)
			go func() { late <- pgtest.TryAppend(t.Context(), s.pool, message("late", 1)) }()
			s.waiting(2)
			commit()
			s.append("held", 2)
			s.await(result)
			pgtest.Must(t, <-late)
			s.append("held", 3)
			if s.total.Add(1); test.to == external {
				s.read(0)
			}
			s.complete()
			if s.again != 0 && test.to != lanes { // there the reader still has what is also pending
				t.Errorf("%d events came again: the slot does not begin behind the pending ones", s.again)
			}
		})
	}
}

// The event of a transaction that commits late is only in the log. The switch back waits for it, and moves it. An event
// whose seq is drawn before it is moved, but which reads the new mode, comes behind it.
func TestSwitchWaitsForAnEventOfTheLog(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.publish()
	s.must(external)
	s.append("a", 1)
	tx, err := s.pool.Begin(t.Context())
	pgtest.Must(t, err)
	pgtest.Execute(t, tx, "LOCK TABLE video_catalog.outbox_relay IN ROW SHARE MODE") // as an append that begins during the switch
	result := s.start(lanes)
	s.waiting(1)
	pgtest.Append(t, tx, message("a", 2))
	late := make(chan error, 1)
	go func() { late <- pgtest.TryAppend(t.Context(), s.pool, message("a", 3)) }()
	s.waiting(2)
	pgtest.Must(t, tx.Commit(t.Context()))
	s.await(result)
	pgtest.Must(t, <-late)
	s.total.Add(2)
	s.complete()
	s.eventually(0, slotsOf, s.slot)
}

// A switch that cannot end names the transaction, changes nothing, and holds no append for long. It leaves no slot that it has made.
func TestSwitchGivesUp(t *testing.T) {
	before := switchTimeout
	switchTimeout = 2 * time.Second // no other test runs meanwhile
	t.Cleanup(func() { switchTimeout = before })
	s := newService(t)
	s.publish()
	unchanged := func(mode string, want ...string) {
		t.Helper()
		_, err := s.relay(mode)
		for _, text := range append(want, "so the mode is as it was") {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("relay %s = %v, want an error with %q", mode, err, text)
			}
		}
		if out := s.must("status"); strings.Contains(out, "mode "+mode) {
			t.Errorf("status = %q, want the mode from before", out)
		}
	}
	who := []string{"a transaction is open: process ", "user postgres, application ", ", age 00:00:0"}
	commit := s.openAppend("")
	unchanged(external, who...) // the new slot waits for it
	s.eventually(0, slotsOf, s.slot)
	s.eventually(0, slow)
	commit()
	s.makeSlot()
	commit = s.openAppend("a", 1)
	unchanged(external, who...)
	began := time.Now()
	result := s.start(external)
	s.waiting(1)
	s.append("b", 1)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("an append took %s, want at most that of an attempt", took)
	}
	commit()
	s.await(result)
	commit = s.openAppend("b", 2)
	unchanged(lanes, who...)
	commit()
	s.must(lanes)
	s.complete()
}

const (
	// holding counts the switches that have made the slot, and hold appends.
	holding = "SELECT count(*) FROM pg_locks WHERE relation = 'video_catalog.outbox_relay'::regclass AND mode = 'ExclusiveLock' AND granted"
	slotsOf = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
	// slow counts the triggers with which appends are slower than they need be outside of a switch.
	slow = `SELECT count(*) FROM pg_trigger t, video_catalog.outbox_relay r
		WHERE t.tgname = 'outbox_relayed' AND t.tgenabled <> 'D' AND (r.mode = 'lanes' OR t.tgfoid = 'video_catalog.outbox_relayed'::regproc)`
)

func (s *service) makeSlot() {
	s.Helper()
	pgtest.Execute(s, s.pool, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", s.slot)
}

// A switch to the log refuses what would break the order of an aggregate: a refused event, and a connected reader.
func TestSwitchRefuses(t *testing.T) {
	t.Parallel()
	s := newService(t)
	refuses := func(mode, want string) {
		t.Helper()
		if _, err := s.relay(mode); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("relay %s = %v, want an error with %q", mode, err, want)
		}
	}
	var bad atomic.Bool
	bad.Store(true)
	s.refuse = func(envelope.Message) bool { return bad.Load() }
	stop := s.publish()
	s.append("a", 1)
	pgtest.Eventually(t, 5*time.Second, "it is blocked", func() bool {
		return pgtest.Count(t, s.pool, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE attempts > 0") == 1
	})
	refuses(external, "1 aggregates are blocked")
	bad.Store(false)
	s.complete()
	pgtest.Eventually(t, 5*time.Second, "it is free", func() bool { return pgtest.Count(t, s.pool, "SELECT count(*) FROM video_catalog.outbox_blocked") == 0 })
	tx, err := s.pool.Begin(t.Context())
	pgtest.Must(t, err)
	pgtest.Execute(t, tx, "SELECT pg_advisory_xact_lock('video_catalog.outbox_relay'::regclass::oid::bigint)")
	refuses(external, "wait for another switch")
	pgtest.Must(t, tx.Rollback(t.Context()))
	if err := (&switcher{pool: pgtest.Open(t, s.url, 2)}).run(t.Context()); err == nil || !strings.Contains(err.Error(), "raise DATABASE_MAX_CONNS") {
		t.Errorf("a switch with two connections = %v, want the setting", err)
	}
	s.makeSlot()
	disconnect := s.connectReader()
	refuses(external, "a reader is connected to the slot "+s.slot)
	disconnect()
	s.must(external)
	disconnect = s.connectReader()
	refuses(lanes, "a reader is connected")
	disconnect()
	s.must(lanes)
	stop()
}

// connectReader begins to read the slot as a replica does.
func (s *service) connectReader() (disconnect func()) {
	s.Helper()
	conn, err := pgconn.Connect(s.Context(), s.url+"&replication=database")
	pgtest.Must(s, err)
	conn.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT " + s.slot + " LOGICAL 0/0 (proto_version '1', publication_names 'video_catalog_outbox')"})
	pgtest.Must(s, conn.Frontend().Flush())
	isRead := func(want int) {
		pgtest.Eventually(s, 10*time.Second, "the slot has a reader, or none", func() bool { return pgtest.Count(s, s.pool, slotsOf+" AND active", s.slot) == want })
	}
	isRead(1)
	return func() {
		_ = conn.Close(context.WithoutCancel(s.Context()))
		isRead(0)
	}
}

// The steps of a switch can be repeated: with a slot that a crash has left, behind a page that was moved and not confirmed, and in the right mode.
func TestSwitchAfterACrash(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.publish()
	s.makeSlot()
	s.must(lanes)
	s.eventually(1, slotsOf, s.slot) // the row does not name it yet, so it is not ours
	s.must(external)
	s.must(external)
	for v := range int64(5) {
		s.append("a", v+1)
	}
	crashed := &switcher{request: request{Mode: lanes, Slot: s.slot}, pool: s.pool, queries: sqlcgen.New(pg.Autocommit(s.pool))}
	pgtest.Must(t, crashed.dropSlot(t.Context())) // it stays, as the mode is not lanes
	pgtest.Execute(t, s.pool, beginSwitch)
	if err := pg.InTx(t.Context(), s.pool, "test", func(ctx context.Context, tx *pg.Tx) error { // as toLanes, without its last step
		q := sqlcgen.New(tx)
		tx.Queue(q.UseMode(ctx, lanes))
		_, _, err := crashed.move(ctx, tx, pageChanges)
		tx.Queue(q.UseMode(ctx, external))
		return err
	}); err != nil || crashed.moved != 5 {
		t.Fatalf("move() = %v, %d events, want 5", err, crashed.moved)
	}
	s.append("a", 6)
	if out := s.must(lanes); !strings.Contains(out, "mode lanes") || !strings.Contains(out, "6 came from the log, and 0 more") {
		t.Errorf("relay lanes = %q, want what was moved, and the mode", out)
	}
	s.makeSlot() // as if the switch had died before it dropped it
	disconnect := s.connectReader()
	sender := pgtest.Count(t, s.pool, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1", s.slot)
	pgtest.Must(t, syscall.Kill(sender, syscall.SIGSTOP)) // it is told to end, and does not yet
	result := s.start(lanes)
	time.Sleep(100 * time.Millisecond)
	pgtest.Must(t, syscall.Kill(sender, syscall.SIGCONT))
	s.await(result)
	disconnect()
	s.makeSlot()
	if out := s.must(lanes); strings.Contains(out, "came from the log") {
		t.Errorf("relay lanes = %q, want no count of nothing", out)
	}
	s.eventually(0, slotsOf, s.slot)
	s.append("a", 7)
	s.complete()
}

// A log that grew while its reader was away is moved page by page, in order.
func TestSwitchMovesALongLog(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.must(external)
	const each, aggregates = 1500, 10
	for i := range aggregates {
		pgtest.Execute(t, s.pool, `INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			SELECT overlay(gen_random_uuid()::text PLACING left(video_catalog.uuid7_floor(now())::text, 13) FROM 1)::uuid, 'letter', $1, 'Posted', n, 1, '', now() FROM generate_series(1, $2::int) n`, fmt.Sprint("a", i), each)
	}
	s.must(lanes)
	s.publish()
	s.total.Store(each * aggregates)
	s.complete()
}

// The events of a lost slot come from the outbox, from a time on. Without the time, the switch names it.
func TestSwitchWithoutTheSlot(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.must(external)
	for v := range int64(20) {
		s.append("a", v+1)
	}
	pgtest.Execute(t, s.pool, "SELECT pg_drop_replication_slot($1)", s.slot)
	_, err := s.relay(lanes)
	if err == nil || !strings.Contains(err.Error(), "is missing, so nobody knows what its reader has sent: --since ") {
		t.Fatalf("relay lanes = %v, want the time", err)
	}
	since := strings.Fields(strings.SplitN(err.Error(), "--since ", 2)[1])[0]
	s.must(lanes, "--since", since)
	s.publish()
	s.append("a", 21)
	s.complete()
}

// Wrong arguments are refused with the reason.
func TestRelayRefusesBadArguments(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for want, args := range map[string][]string{
		"want status, lanes, external or wal": {"log"},
		"and --since for lanes only":          {"status", "--since", "2026-01-01T00:00:00Z"},
		"--slot is for external and wal only": {"lanes", "--slot", "x"},
		"-all":                                {"status", "--all"},
	} {
		if _, err := s.relay(args...); app.ExitCode(err) != app.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("relay %q = %v, want exit code %d with %q", args, err, app.ExitUsage, want)
		}
	}
}
