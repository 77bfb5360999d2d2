package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
	"example.com/videocatalog/internal/store/storetest"
)

// BenchmarkWrite measures a command's transaction, over 8 connections: lock the
// video, decide, write the row, append the event. It reports its rate, and the
// ratio to the same transaction without the append and to pgbench, which runs
// the same statements, pipelined in the same way, without Go; they take turns in
// one run. The ratio to pgbench is taken where the database has CPUs of its own,
// as in production, and where it shares them with its client, so that what the
// client costs is taken from the database.
func BenchmarkWrite(b *testing.B) {
	const writers, videos, rounds = 8, 1000, 5
	const turn = 2 * time.Second
	pool := storetest.Pool(b, writers)
	store := NewVideos(pool, nil)
	ids := make([]uuid.UUID, videos)
	for i := range ids {
		// pgbench has no arrays, so the id of a video is its number.
		e, err := domain.CreateVideo(uuid.MustParse(fmt.Sprintf("00000000-0000-7000-8000-%012d", i)), domain.VideoDetails{Title: "Seven Samurai", Description: strings.Repeat("x", 200)},
			domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := store.CreateVideo(b.Context(), uuid.Nil, nil, e); err != nil {
			b.Fatal(err)
		}
		ids[i] = e.Video.ID
	}
	decide := func(i int) domain.VideoDecision {
		return domain.UpdateVideo([]domain.VideoField{domain.VideoFieldTitle}, domain.VideoDetails{Title: "Title " + strconv.Itoa(i)}, domain.AnyVersion,
			domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()})
	}
	with := func(ctx context.Context, i int) error {
		_, err := store.ChangeVideo(ctx, ids[i%videos], decide(i))
		return err
	}
	without := func(ctx context.Context, i int) error {
		return inTx(ctx, pool, "without", func(ctx context.Context, q *sqlcgen.Queries) error {
			row, err := q.LockVideo(ctx, ids[i%videos])
			if err != nil {
				return err
			}
			e, err := decide(i)(videoOf(row))
			if err != nil {
				return err
			}
			if _, err := event.EncodeVideo(e); err != nil { // the same work in Go
				return err
			}
			v := e.Video
			return q.UpdateVideo(ctx, sqlcgen.UpdateVideoParams{
				ID: v.ID, Title: v.Title, Description: v.Description, ReleaseYear: v.ReleaseYear,
				DurationMs: v.Duration.Milliseconds(), LanguageCode: v.LanguageCode, Tags: notNil(v.Tags),
				State: string(v.State), Version: v.Version,
				UpdateTime: v.UpdateTime, PublishTime: optional(v.PublishTime), DeleteTime: optional(v.DeleteTime),
			})
		})
	}
	script := pgbenchScript(b, pool)

	var withRate, withoutRate, pgbenchRate, withApart, pgbenchApart float64
	for b.Loop() {
		for range rounds {
			withRate += rate(b, writers, turn, with)
			withoutRate += rate(b, writers, turn, without)
			pgbenchRate += pgbench(b, pool, script, writers, turn)
			undo := storetest.Apart(b)
			withApart += rate(b, writers, turn, with)
			pgbenchApart += pgbench(b, pool, script, writers, turn)
			undo()
		}
	}
	n := float64(b.N * rounds)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(withRate/n, "tx/s")
	b.ReportMetric(withRate/withoutRate, "x-without-outbox")
	b.ReportMetric(withRate/pgbenchRate, "x-pgbench")
	b.ReportMetric(withApart/n, "tx/s-apart")
	b.ReportMetric(withApart/pgbenchApart, "x-pgbench-apart")
}

// rate returns how often do ran a second.
func rate(b *testing.B, workers int, turn time.Duration, do func(ctx context.Context, i int) error) float64 {
	ctx, cancel := context.WithTimeout(b.Context(), turn)
	defer cancel()
	var wg sync.WaitGroup
	counts := make([]int, workers)
	start := time.Now()
	for w := range workers {
		wg.Go(func() {
			for i := w; ctx.Err() == nil; i += workers {
				if err := do(b.Context(), i*7919); err != nil {
					b.Error(err)
					return
				}
				counts[w]++
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(start).Seconds()
}

// pgbenchScript writes what BenchmarkWrite's transaction sends, in the same
// two round trips.
func pgbenchScript(b *testing.B, pool *pgxpool.Pool) string {
	b.Helper()
	var payload int
	if err := pool.QueryRow(b.Context(), "SELECT length(payload) FROM video_catalog.outbox LIMIT 1").Scan(&payload); err != nil {
		b.Fatal(err)
	}
	prefix := uuid.Must(uuid.NewV7()).String()[:14] // the partition, and the version
	script := fmt.Sprintf(`\set n random(0, 999)
\startpipeline
BEGIN;
SELECT * FROM video_catalog.videos WHERE id = ('00000000-0000-7000-8000-' || lpad(:n::text, 12, '0'))::uuid FOR NO KEY UPDATE;
\endpipeline
\startpipeline
UPDATE video_catalog.videos SET title = 'Title ' || :n, description = repeat('x', 200), release_year = 0, duration_ms = 0, language_code = '', tags = '{}', state = 'draft', version = version + 1, update_time = now(), publish_time = NULL, delete_time = NULL WHERE id = ('00000000-0000-7000-8000-' || lpad(:n::text, 12, '0'))::uuid;
WITH event AS (INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent) VALUES (('%s' || substr(gen_random_uuid()::text, 15))::uuid, 'video', '00000000-0000-7000-8000-' || lpad(:n::text, 12, '0'), 'VideoUpdated', 2, 1, '\x%s', now(), NULL) RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent) INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent) SELECT :n::int %% 8, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent FROM event;
COMMIT;
\endpipeline
`, prefix, strings.Repeat("ab", payload))
	path := filepath.Join(b.TempDir(), "write.sql")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

var pgbenchTPS = regexp.MustCompile(`tps = ([0-9.]+)`)

func pgbench(b *testing.B, pool *pgxpool.Pool, script string, clients int, turn time.Duration) float64 {
	b.Helper()
	var program string
	if err := pool.QueryRow(b.Context(), "SELECT setting || '/pgbench' FROM pg_config WHERE name = 'BINDIR'").Scan(&program); err != nil {
		b.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(b.Context(), program, "-n", "-M", "prepared", "-f", script, "-c", strconv.Itoa(clients), "-j", "2",
		"-T", strconv.Itoa(int(turn.Seconds())), pool.Config().ConnString())
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		b.Fatalf("pgbench: %v\n%s", err, out.String())
	}
	match := pgbenchTPS.FindStringSubmatch(out.String())
	if match == nil {
		b.Fatalf("pgbench printed no rate:\n%s", out.String())
	}
	tps, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return tps
}

// BenchmarkProject measures how many events a second four workers apply in
// micro-batches of 100, and the ratio to a transaction per event; the two take
// turns in one run.
func BenchmarkProject(b *testing.B) {
	const workers, rounds = 4, 3
	const turn = 2 * time.Second
	catalog := NewCatalog(storetest.Pool(b, workers))
	project := func(size int) func(ctx context.Context, i int) error {
		return func(ctx context.Context, _ int) error {
			events := make([]domain.VideoEvent, size)
			for i := range events {
				e, err := domain.CreateVideo(uuid.Must(uuid.NewV7()), domain.VideoDetails{Title: "Seven Samurai", Description: strings.Repeat("x", 200)},
					domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()})
				if err != nil {
					return err
				}
				events[i] = *e
			}
			_, err := catalog.Project(ctx, "bench", events)
			return err
		}
	}
	var batched, single float64
	for b.Loop() {
		for range rounds {
			batched += 100 * rate(b, workers, turn, project(100))
			single += rate(b, workers, turn, project(1))
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(batched/float64(b.N*rounds), "events/s")
	b.ReportMetric(batched/single, "x-per-message")
}
