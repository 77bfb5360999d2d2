package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

// BenchmarkTwoPhaseCommit measures what a transaction that writes a letter costs PostgreSQL: alone, with its event in the
// outbox, and both by two-phase commit. A broker would prepare and commit, too; what that takes is not measured. The ways
// take turns in one run. A transaction is one round trip to the database, and its second phase another.
func BenchmarkTwoPhaseCommit(b *testing.B) {
	for _, writers := range []int{1, 8} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			pool := pgtest.Pool(b, int32(writers)+1) // one to measure
			pgtest.Execute(b, pool, "CREATE TABLE letters (id text PRIMARY KEY, subject text NOT NULL)")
			ways := []*way{
				{name: "letter"},
				{name: "outbox", event: true},
				{name: "2pc-letter", prepared: true},
				{name: "2pc-both", event: true, prepared: true},
			}
			const rounds, turn = 25, 200 * time.Millisecond // short turns, because other programs disturb the machine
			for b.Loop() {
				for range rounds {
					for _, w := range ways {
						w.measure(b, pool, writers, turn)
					}
				}
			}
			b.ReportMetric(0, "ns/op")
			ours := ways[1]
			for _, w := range ways {
				b.ReportMetric(w.commits/w.seconds, w.name+"-tx/s")
				b.ReportMetric(w.wal/w.commits, w.name+"-WAL-B/tx")
				b.ReportMetric(w.syncs/w.commits, w.name+"-syncs/tx")
				if w != ours {
					b.ReportMetric((ours.commits/ours.seconds)/(w.commits/w.seconds), "outbox/"+w.name)
				}
			}
		})
	}
}

// way is a way to write letters, and what it has cost so far.
type way struct {
	name            string
	event, prepared bool

	commits, seconds, wal, syncs float64
}

// measure writes letters for a turn.
func (w *way) measure(b *testing.B, pool *pgxpool.Pool, writers int, turn time.Duration) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), turn)
	defer cancel()
	wal, syncs := walOf(b, pool)
	var commits atomic.Int64
	var writing sync.WaitGroup
	start := time.Now()
	for n := range writers {
		writing.Go(func() {
			for ctx.Err() == nil {
				if err := w.write(b.Context(), pool, n); err != nil {
					b.Error(err)
					return
				}
				commits.Add(1)
			}
		})
	}
	writing.Wait()
	w.seconds += time.Since(start).Seconds()
	w.commits += float64(commits.Load())
	walAfter, syncsAfter := walOf(b, pool)
	w.wal += walAfter - wal
	w.syncs += syncsAfter - syncs
}

// walOf returns how many bytes of WAL the server has written, and how often it has synced them to the disk.
func walOf(b *testing.B, pool *pgxpool.Pool) (bytes, syncs float64) {
	b.Helper()
	idle := pool.AcquireAllIdle(b.Context())
	for _, conn := range idle { // otherwise a session reports its syncs late
		_, err := conn.Exec(b.Context(), "SELECT pg_stat_force_next_flush()")
		conn.Release()
		must(b, err)
	}
	count := "SELECT wal_sync FROM pg_stat_wal"
	if pgtest.Count(b, pool, "SELECT current_setting('server_version_num')::int") >= 180000 {
		count = "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"
	}
	must(b, pool.QueryRow(b.Context(), "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8, ("+count+")::float8").Scan(&bytes, &syncs))
	return bytes, syncs
}

// write writes one letter.
func (w *way) write(ctx context.Context, pool *pgxpool.Pool, writer int) error {
	e := newEvent(uuid.Must(uuid.NewV7()))
	var transaction pipeline
	transaction.Queue("BEGIN")
	transaction.Queue(`INSERT INTO letters (id, subject) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET subject = excluded.subject`, e.AggregateID, string(e.Payload))
	if w.event {
		if err := pgtest.TryAppend(ctx, &transaction, e); err != nil {
			return err
		}
	}
	if !w.prepared {
		transaction.Queue("COMMIT")
		return pool.SendBatch(ctx, &transaction.Batch).Close()
	}
	// The name has the writer, so that a session prepares the statement once.
	transaction.Queue(fmt.Sprintf("PREPARE TRANSACTION 'writer %d'", writer))
	if err := pool.SendBatch(ctx, &transaction.Batch).Close(); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, fmt.Sprintf("COMMIT PREPARED 'writer %d'", writer))
	return err
}

// pipeline queues statements that are sent together.
type pipeline struct {
	pgx.Batch
	pgtest.DB // nil: only Exec is called, which pipeline replaces
}

func (p *pipeline) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	p.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

// newEvent is the first event of a letter.
func newEvent(id uuid.UUID) envelope.Message {
	return envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id.String(), Type: "LetterChanged", Version: 1, SchemaVersion: 1,
		Payload: bytes.Repeat([]byte("x"), 100), OccurredAt: time.Now(),
	}
}
