package wal

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

// inWALOnServer makes a service in mode wal on a server of its own, which a fault is about.
func inWALOnServer(t *testing.T) *service {
	t.Helper()
	s := newServiceOn(t, startServer(t, localpg.Config{Settings: settings}))
	s.must(wal)
	return s
}

func startServer(t *testing.T, cfg localpg.Config) *localpg.Server {
	t.Helper()
	own, err := localpg.Start(t.Context(), cfg)
	pgtest.Must(t, err)
	t.Cleanup(func() { _ = own.Stop() })
	return own
}

// standbyOf starts a standby. It skips the test where the programs of PostgreSQL are not all there.
func standbyOf(t *testing.T, primary *localpg.Server) *localpg.Server {
	t.Helper()
	if _, err := os.Stat(filepath.Join(primary.Programs(), "pg_basebackup")); err != nil {
		t.Skipf("no standby: %v", err)
	}
	return startServer(t, localpg.Config{StandbyOf: primary, Settings: settings})
}

// After a crash of the server its confirmed position is an older one. The process knows what it has sent: nothing comes again, also not
// after its stop.
func TestServerCrash(t *testing.T) {
	t.Parallel()
	s := inWALOnServer(t)
	stop := s.relayed()
	s.writes(time.Second)
	for range 3 {
		pid := pgtest.Count(t, s.pool, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
		pgtest.Must(t, syscall.Kill(pid, syscall.SIGKILL)) // the server ends all processes, and recovers from the log
		pgtest.Eventually(t, 20*time.Second, "the server is back", func() bool {
			s.pool.Reset()
			var left int
			err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid).Scan(&left)
			return err == nil && left == 0
		})
		s.writes(100 * time.Millisecond)
	}
	stop()
	defer s.relayed()()
	s.append("last", 1)
	s.complete()
	if s.again > 0 {
		t.Errorf("%d events came again, want none", s.again)
	}
}

// A second process waits while the first reads, and takes over at its stop. So two revisions run side by side during a deploy.
func TestSecondProcessTakesOver(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	stop := s.relayed()
	for range 3 {
		next := s.relayed()
		s.writes(300 * time.Millisecond)
		stop()
		s.writes(300 * time.Millisecond)
		stop = next
	}
	if s.again > 0 {
		t.Errorf("%d events came again, want none", s.again)
	}
}

// The slot is dropped, or PostgreSQL gives it up because it keeps too much of the log. The events come from the table outbox.
func TestLostSlot(t *testing.T) {
	t.Parallel()
	execute := func(s *service, statements ...string) {
		for _, statement := range statements {
			pgtest.Execute(s, s.pool, statement)
		}
	}
	for name, lose := range map[string]func(*service){
		"dropped": func(s *service) { execute(s, "SELECT pg_drop_replication_slot('"+s.slot+"')") },
		"too large": func(s *service) {
			execute(s, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
			pgtest.Eventually(s, 20*time.Second, "the slot is lost", func() bool {
				execute(s, "CREATE TABLE noise AS SELECT repeat('x', 1000) FROM generate_series(1, 10000)", "DROP TABLE noise", "SELECT pg_switch_wal()", "CHECKPOINT")
				return pgtest.Count(s, s.pool, "SELECT count(*) FROM pg_replication_slots WHERE wal_status = 'lost'") == 1
			})
			execute(s, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := inWALOnServer(t)
			stop := s.relayed()
			s.refuse = once(100)
			s.writes(time.Second)
			stop()
			s.append("lost", 1)
			writers := s.write(20, 5*time.Millisecond)
			lose(s)
			defer s.relayed()()
			s.eventually(1, "SELECT count(*) FROM pg_replication_slots WHERE wal_status = 'reserved' AND active")
			writers()
			s.complete()
			s.must(lanes)
		})
	}
}

// A standby that is promoted has no slot. The events that were not confirmed come from its table outbox.
func TestPromotedStandby(t *testing.T) {
	t.Parallel()
	primary := startServer(t, localpg.Config{Settings: settings})
	standby := standbyOf(t, primary)
	s := newServiceOn(t, primary)
	s.must(wal)
	stop := s.relayed()
	s.writes(500 * time.Millisecond)
	stop()
	s.append("last", 1) // nobody sends it
	copied := s.connect(standby.DSN(s.slot))
	pgtest.Eventually(t, 20*time.Second, "the standby has all", func() bool {
		return pgtest.Count(t, copied, "SELECT count(*) FROM video_catalog.outbox") == int(s.total.Load())
	})
	_ = primary.Kill()
	pgtest.Execute(t, copied, "SELECT pg_promote()")
	s.url, s.pool = standby.DSN(s.slot), copied
	defer s.relayed()()
	s.append("new", 1)
	s.complete()
}

// One transaction of 200,000 events needs little memory: the reader does not read while the queue is full.
func TestMemoryOfALongTransaction(t *testing.T) {
	s := inWALOnServer(t)
	defer s.relayed()()
	s.append("first", 1)
	s.complete()
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const n = 200_000
	s.total.Add(n)
	pgtest.Execute(t, s.pool, `INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT (left(video_catalog.uuid7_floor(now())::text, 14) || right(gen_random_uuid()::text, 22))::uuid, 'letter', 'big' || i % 100, 'Posted',
			1 + i / 100, 1, decode(repeat('ab', 300), 'hex'), now()
		FROM generate_series(0, $1 - 1) i`, n)
	var most int64
	pgtest.Eventually(t, 2*time.Minute, "all are delivered", func() bool {
		runtime.ReadMemStats(&now)
		most = max(most, int64(now.HeapInuse)-int64(before.HeapInuse))
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.first > n
	})
	if t.Logf("at most %d MiB above idle", most>>20); most > 64<<20 {
		t.Errorf("%d MiB above idle, want at most 64", most>>20)
	}
	s.complete()
}

// A partition is dropped, the table gets a column, and a dump is running. The reader goes on.
func TestChangesOfTheTable(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	defer s.relayed()()
	writers := s.write(20, 5*time.Millisecond)
	dump, err := s.pool.Acquire(t.Context())
	pgtest.Must(t, err)
	defer dump.Release()
	pgtest.Execute(t, dump, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	pgtest.Count(t, dump, "SELECT count(*) FROM video_catalog.outbox_blocked")
	for _, change := range []string{
		"CREATE TABLE video_catalog.outbox_p20200101 (LIKE video_catalog.outbox INCLUDING ALL)",
		`ALTER TABLE video_catalog.outbox ATTACH PARTITION video_catalog.outbox_p20200101
			FOR VALUES FROM (video_catalog.uuid7_floor('2020-01-01')) TO (video_catalog.uuid7_floor('2020-01-02'))`,
		"ALTER TABLE video_catalog.outbox ADD COLUMN added text DEFAULT 'x'", "DROP TABLE video_catalog.outbox_p20200101",
	} {
		before := s.total.Load()
		pgtest.Execute(t, s.pool, change)
		pgtest.Eventually(t, 20*time.Second, "there are events", func() bool { return s.total.Load() > before+100 })
	}
	writers()
	s.complete()
	pgtest.Execute(t, dump, "COMMIT")
}

// While the outbox is quiet, the slot keeps at most two segments of what others write.
func TestQuietOutbox(t *testing.T) {
	t.Parallel()
	s := inWALOnServer(t)
	defer s.relayed()()
	s.append("a", 1)
	s.complete()
	for range 6 { // 96 MiB
		pgtest.Execute(t, s.pool, "CREATE TABLE noise AS SELECT repeat(md5(i::text), 30) FROM generate_series(1, 15000) i")
		pgtest.Execute(t, s.pool, "DROP TABLE noise")
		pgtest.Execute(t, s.pool, "SELECT pg_switch_wal()")
	}
	pgtest.Execute(t, s.pool, "CHECKPOINT")
	s.eventually(1, "SELECT count(*) FROM pg_replication_slots WHERE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) <= 32 * 1024 * 1024")
}

// Events that are deferred or skipped do not come again when the log is read again.
func TestDeferredEventsDoNotComeAgain(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	s.refuse = func(m envelope.Message) bool { return m.AggregateID == "bad" && m.Version == 2 }
	s.holds = func(m envelope.Message) bool { return m.AggregateID == "held" } // so that nothing is confirmed
	stop := s.relayed()
	s.append("held", 1)
	for v := range 4 {
		s.append("bad", int64(v+1))
	}
	s.eventually(3, deferredEvents)
	stop()
	pgtest.Execute(t, s.pool, `WITH gone AS (DELETE FROM video_catalog.outbox_deferred WHERE version = 2 RETURNING *)
		INSERT INTO video_catalog.outbox_skipped (event_id, aggregate_type, aggregate_id, seq, actor, reason)
		SELECT id, aggregate_type, aggregate_id, seq, 'ann', 'test' FROM gone`)
	pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_blocked SET attempts = 0, next_retry_at = now(), head_seq = head_seq + 1")
	s.holds = nil
	defer s.relayed()()
	want := []int64{1, 3, 4}
	pgtest.Eventually(t, 10*time.Second, "all others are delivered", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Equal(s.delivered["bad"], want) && len(s.delivered["held"]) == 1
	})
	s.eventually(0, deferredEvents)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused > 1 || s.again > 1 { // version 1 was not confirmed
		t.Errorf("%d refused and %d again: what was skipped or deferred came again", s.refused, s.again)
	}
}

// A snapshot that was pending before an event of its aggregate was refused is sent, too.
func TestSnapshotBesideARefusedEvent(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	pgtest.Execute(t, s.pool, `INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version,
		payload, occurred_at, repeat) VALUES ($1, gen_random_uuid(), 'letter', 'a', 'Posted', 1, 1, '', now(), 'snapshot')`, outbox.Lane(message("a", 1).Aggregate()))
	pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_reader SET token = 2")
	pgtest.Must(t, newStore(s.pool, pg.NewOutbox(s.pool)).setAside(t.Context(), []aside{{message("a", 1), outbox.Refusal{Attempts: 1}}}, 2))
	stop := s.relayed()
	s.eventually(0, "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)")
	if stop(); s.first+s.again != 2 {
		t.Errorf("%d messages were sent, want the event and the snapshot", s.first+s.again)
	}
}

// A process that is no longer the reader defers nothing.
func TestOldReaderDefersNothing(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_reader SET token = 2")
	old := newStore(s.pool, pg.NewOutbox(s.pool))
	if err := old.setAside(t.Context(), []aside{{Message: message("a", 1)}}, 1); !errors.Is(err, errFenced) {
		t.Errorf("setAside() = %v, want that it is fenced", err)
	}
	s.eventually(0, deferredEvents)
}

// A switch and the start name each mistake, and nothing is changed.
func TestMistakesOfModeWAL(t *testing.T) {
	t.Parallel()
	s := newServiceOn(t, startServer(t, localpg.Config{Settings: map[string]string{"wal_level": "logical", "max_replication_slots": "1"}}))
	pgtest.Execute(t, s.pool, "CREATE ROLE plain LOGIN IN ROLE video_catalog_rw")
	refuses := func(user, want string) {
		t.Helper()
		url := strings.Replace(s.url, "postgres@", user+"@", 1)
		_, switched := s.server(url, "relay", wal)
		s.eventually(1, "SELECT count(*) FROM video_catalog.outbox_relay WHERE mode = 'lanes'")
		pool, err := pgxpool.New(t.Context(), url)
		pgtest.Must(t, err)
		defer pool.Close()
		pgtest.Execute(t, s.pool, beginSwitch)
		pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_relay SET mode = 'wal', slot = $1", s.slot)
		_, started := newReader(t.Context(), &app.Process{CommandPool: pool}, nil)
		pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_relay SET mode = 'lanes'")
		for what, err := range map[string]error{"relay wal": switched, "the start": started} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s = %v, want %q", what, err, want)
			}
		}
	}
	refuses("plain", "plain must have the attribute REPLICATION: ALTER ROLE plain REPLICATION")
	pgtest.Execute(t, s.pool, "SELECT pg_create_logical_replication_slot('other', 'test_decoding')")
	refuses("postgres", "all 1 slots are taken: drop one, or raise max_replication_slots")
	pgtest.Execute(t, s.pool, "SELECT pg_drop_replication_slot('other')")
	cfg := s.pool.Config().ConnConfig
	cfg.DialFunc = poolerOf
	err := checkReader(t.Context(), cfg, sqlcgen.New(pg.Autocommit(s.pool)), s.slot)
	if err == nil || !strings.Contains(err.Error(), "must not lead through a pooler") {
		t.Errorf("checkReader() = %v, want the pooler", err)
	}
	s.eventually(1, "SELECT count(*) FROM video_catalog.outbox_relay WHERE mode = 'lanes' AND NOT EXISTS (SELECT FROM pg_replication_slots)")
}

// poolerOf dials a pooler that refuses a startup parameter that it does not know, as PgBouncer does.
func poolerOf(context.Context, string, string) (net.Conn, error) {
	client, pooler := net.Pipe()
	go func() {
		backend := pgproto3.NewBackend(pooler, pooler)
		_, _ = backend.ReceiveStartupMessage()
		backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: replication"})
		_ = backend.Flush()
	}()
	return client, nil
}
