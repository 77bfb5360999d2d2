package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const videoCount = 1000

var description = strings.Repeat("x", 200)

// writes measures the transaction of a command over eight connections: lock the video, decide, update the row, append
// the event. It compares that with the same transaction without the append, and with pgbench, which sends the same
// statements in the same two round trips. Each kind has its own database. The CPU use of the client slows down the database.
func writes(ctx context.Context, m *machine, p profile, r *results) (err error) {
	kinds := []string{"ours", "without-outbox", "pgbench"}
	pools := map[string]*pgxpool.Pool{}
	for _, kind := range kinds {
		var err error
		if pools[kind], err = m.open(ctx, writers); err != nil {
			return err
		}
		if err := createVideos(ctx, store.NewVideos(pools[kind], nil)); err != nil {
			return err
		}
	}
	script, err := pgbenchScript(ctx, pools["pgbench"])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(filepath.Dir(script))) }()
	// The duration of pgbench is in whole seconds, and pgbench connects and prepares again in each turn.
	turn := max(4*p.turn, time.Second).Truncate(time.Second)
	for round := range p.rounds {
		for _, kind := range kinds {
			if err := m.checkpoint(ctx); err != nil {
				return err
			}
			var tps float64
			var other time.Duration // CPU time of a client in another process
			used, err := m.measure(ctx, func() (err error) {
				switch kind {
				case "ours":
					videos := store.NewVideos(pools[kind], nil)
					tps, err = rate(ctx, writers, turn, func(ctx context.Context, i int) error {
						_, err := videos.ChangeVideo(ctx, videoID(i), change())
						return err
					})
				case "without-outbox":
					tps, err = rate(ctx, writers, turn, func(ctx context.Context, i int) error { return changeOnly(ctx, pools[kind], i) })
				case "pgbench":
					tps, other, err = pgbench(ctx, pools[kind], script, round, turn)
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			n := tps * turn.Seconds()
			if err := r.write("Write/kind="+kind, int(n), value{"tx/s", tps},
				value{"own-cpu-us/tx", float64((used.ours + other).Microseconds()) / n},
				value{"postgres-cpu-us/tx", float64(used.postgres.Microseconds()) / n},
				value{"WAL-B/tx", float64(used.wal) / n}); err != nil {
				return err
			}
		}
	}
	return nil
}

// videoID returns the id of a video by its number, because pgbench has no arrays.
func videoID(i int) uuid.UUID {
	return uuid.MustParse(fmt.Sprintf("00000000-0000-7000-8000-%012d", i%videoCount))
}

func createVideos(ctx context.Context, videos *store.Videos) error {
	for i := range videoCount {
		id := uuid.Must(uuid.NewV7())
		e, err := domain.CreateVideo(videoID(i), domain.VideoDetails{Title: "Seven Samurai", Description: description}, domain.Stamp{EventID: id, Time: time.Now()})
		if err != nil {
			return err
		}
		if _, err := videos.CreateVideo(ctx, uuid.Nil, nil, e); err != nil {
			return err
		}
	}
	return nil
}

// titles counts titles, so that each is new: a command that changes nothing writes nothing.
var titles atomic.Int64

func change() domain.VideoDecision {
	return func(v domain.Video) (*domain.VideoEvent, error) {
		id := uuid.Must(uuid.NewV7())
		return domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = "Title " + strconv.FormatInt(titles.Add(1), 10) }, domain.AnyVersion,
			domain.Stamp{EventID: id, Time: time.Now()})(v)
	}
}

// changeOnly does the same as ChangeVideo, but without the outbox: two round trips, and the same work in Go.
func changeOnly(ctx context.Context, pool *pgxpool.Pool, i int) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	defer conn.Release()
	begin := &pgx.Batch{}
	begin.Queue("BEGIN")
	begin.Queue(`SELECT id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time, publish_time, delete_time
		FROM video_catalog.videos WHERE id = $1 FOR NO KEY UPDATE`, videoID(i))
	results := conn.SendBatch(ctx, begin)
	var v domain.Video
	var durationMs int64
	var published, deleted *time.Time
	_, err = results.Exec()
	if err == nil {
		err = results.QueryRow().Scan(&v.ID, &v.Title, &v.Description, &v.ReleaseYear, &durationMs, &v.LanguageCode, &v.Tags, &v.State, &v.Version,
			&v.CreateTime, &v.UpdateTime, &published, &deleted)
	}
	if err = errors.Join(err, results.Close()); err != nil {
		return fmt.Errorf("lock video: %w", err)
	}
	v.Duration = time.Duration(durationMs) * time.Millisecond
	e, err := change()(v)
	if err != nil {
		return err
	}
	if _, err := event.EncodeVideo(e); err != nil {
		return err
	}
	v = e.Video
	if v.Tags == nil {
		v.Tags = []string{}
	}
	update := &pgx.Batch{}
	update.Queue(`UPDATE video_catalog.videos SET title = $2, description = $3, release_year = $4, duration_ms = $5, language_code = $6, tags = $7, state = $8,
			version = $9, update_time = $10, publish_time = $11, delete_time = $12 WHERE id = $1`,
		v.ID, v.Title, v.Description, v.ReleaseYear, durationMs, v.LanguageCode, v.Tags, string(v.State), v.Version, v.UpdateTime, published, deleted)
	update.Queue("COMMIT")
	if err := conn.SendBatch(ctx, update).Close(); err != nil {
		return fmt.Errorf("update video: %w", err)
	}
	return nil
}

// rate returns how often per second the workers call do, all together.
func rate(ctx context.Context, workers int, turn time.Duration, do func(ctx context.Context, i int) error) (float64, error) {
	var wg sync.WaitGroup
	var done atomic.Int64
	errs := make([]error, workers)
	begun := time.Now()
	for w := range workers {
		wg.Go(func() {
			for i := w; time.Since(begun) < turn && errs[w] == nil; i += workers {
				if errs[w] = do(ctx, i*7919); errs[w] == nil {
					done.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(begun).Seconds(), errors.Join(errs...)
}

// pgbenchScript returns the path of a script that sends the same statements as ChangeVideo, in the same two round trips.
func pgbenchScript(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	var payload int
	if err := pool.QueryRow(ctx, "SELECT length(payload) FROM video_catalog.outbox LIMIT 1").Scan(&payload); err != nil {
		return "", fmt.Errorf("read an event: %w", err)
	}
	id := uuid.Must(uuid.NewV7())
	prefix := id.String()[:14] + "7000-8000-" // the prefix selects the partition; 7 is the version of the UUID
	const video = `'00000000-0000-7000-8000-' || lpad(:n::text, 12, '0')`
	script := `\set n random(0, 999)
\set k :k + 1
\set event :k * 10 + :client_id
\startpipeline
BEGIN;
SELECT * FROM video_catalog.videos WHERE id = (` + video + `)::uuid FOR NO KEY UPDATE;
\endpipeline
\startpipeline
UPDATE video_catalog.videos SET title = 'Title ' || :n, description = repeat('x', 200), release_year = 0, duration_ms = 0, language_code = '', tags = '{}', state = 'draft', version = version + 1, update_time = now(), publish_time = NULL, delete_time = NULL WHERE id = (` + video + `)::uuid;
WITH event AS (INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at) VALUES (('` + prefix + `' || lpad(:event::text, 12, '0'))::uuid, 'video', ` + video + `, 'VideoUpdated', 2, 1, '\x` + strings.Repeat("ab", payload) + `', now()) RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at) INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at) SELECT :n::int % 8, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at FROM event;
COMMIT;
\endpipeline
`
	folder, err := os.MkdirTemp("", "bench-pgbench")
	if err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	path := filepath.Join(folder, "write.sql")
	return path, os.WriteFile(path, []byte(script), 0o600)
}

var pgbenchTPS = regexp.MustCompile(`tps = ([0-9.]+)`)

func pgbench(ctx context.Context, pool *pgxpool.Pool, script string, round int, turn time.Duration) (tps float64, cpu time.Duration, err error) {
	var program string
	if err := pool.QueryRow(ctx, "SELECT setting || '/pgbench' FROM pg_config WHERE name = 'BINDIR'").Scan(&program); err != nil {
		return 0, 0, fmt.Errorf("find pgbench: %w", err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-n", "-M", "prepared", "-f", script, "-c", strconv.Itoa(writers), "-j", "2", //nolint:gosec // the program of the server
		"-D", fmt.Sprintf("k=%d", round*10_000_000), // ids grow, as ours do, and none is used twice
		"-T", strconv.Itoa(int(turn.Seconds())), pool.Config().ConnString())
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("run pgbench: %w\n%s", err, out.String())
	}
	match := pgbenchTPS.FindStringSubmatch(out.String())
	if match == nil {
		return 0, 0, fmt.Errorf("pgbench printed no rate:\n%s", out.String())
	}
	tps, err = strconv.ParseFloat(match[1], 64)
	return tps, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

// projects measures how many events per second four workers apply, in transactions of 100 events and of one.
func projects(ctx context.Context, m *machine, p profile, r *results) error {
	const workers = 4
	pools := map[int]*pgxpool.Pool{}
	for _, size := range []int{100, 1} {
		var err error
		if pools[size], err = m.open(ctx, workers); err != nil {
			return err
		}
	}
	for range p.rounds {
		for _, size := range []int{100, 1} {
			catalog := store.NewCatalog(pools[size])
			if err := m.checkpoint(ctx); err != nil {
				return err
			}
			var batches float64
			used, err := m.measure(ctx, func() (err error) {
				batches, err = rate(ctx, workers, p.turn, func(ctx context.Context, _ int) error {
					events := make([]domain.VideoEvent, size)
					for i := range events {
						e, err := newVideo()
						if err != nil {
							return err
						}
						events[i] = *e
					}
					_, err := catalog.Project(ctx, "bench", events)
					return err
				})
				return err
			})
			if err != nil {
				return err
			}
			perSecond := batches * float64(size)
			n := perSecond * used.took.Seconds()
			if err := r.write(fmt.Sprintf("Project/batch=%d", size), int(n), value{"events/s", perSecond},
				value{"cpu-s/Mevent", used.cpu().Seconds() / n * 1e6},
				value{"WAL-B/event", float64(used.wal) / n}); err != nil {
				return err
			}
		}
	}
	return nil
}
