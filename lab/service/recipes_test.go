package service

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/pg/pgtest"
)

// importRows returns the rows that are refused even alone. After any other error, run it again with the same rows.
func importRows[R any](ctx context.Context, rows []R, create func(context.Context, []R) error) (bad []R, err error) {
	err = create(ctx, rows)
	switch code := status.Code(err); {
	case code != codes.InvalidArgument && code != codes.AlreadyExists && code != codes.FailedPrecondition:
		return nil, err
	case len(rows) == 1:
		return rows, nil
	}
	for half := range slices.Chunk(rows, (len(rows)+1)/2) {
		more, err := importRows(ctx, half, create)
		bad = append(bad, more...)
		if err != nil {
			return bad, err
		}
	}
	return bad, nil
}

// The recipe for many rows creates each good row once, also if the script is killed in a portion and run again, and finds the bad
// ones. The page has the same function.
func TestImport(t *testing.T) {
	t.Parallel()
	_, sample, _ := strings.Cut(read(t, root+"/docs/recipes.md"), "```go\n")
	if sample, _, _ = strings.Cut(sample, "```"); !strings.Contains(read(t, "recipes_test.go"), sample) {
		t.Error("the function of docs/recipes.md is not the one that this test runs")
	}
	s := newStack(t)
	videos := s.start(t, "ROLES=api").videos
	var rows []*videov1.CreateVideoRequest
	for i := range 1200 {
		row := &videov1.CreateVideoRequest{Video: &videov1.Video{Title: fmt.Sprint("Row ", i)}, RequestId: uuid.NewSHA1(uuid.NameSpaceURL, fmt.Append(nil, i)).String()}
		if i%500 == 7 {
			row.Video.ReleaseYear = 9999
		}
		rows = append(rows, row)
	}
	portions := func(dies int) (bad []*videov1.CreateVideoRequest, err error) {
		calls := 0
		for portion := range slices.Chunk(rows, 1000) {
			more, err := importRows(t.Context(), portion, func(ctx context.Context, rows []*videov1.CreateVideoRequest) error {
				_, err := videos.BatchCreateVideos(ctx, &videov1.BatchCreateVideosRequest{Requests: rows})
				if calls++; calls == dies {
					return status.Error(codes.Canceled, "killed") // after the commit, before the script knows
				}
				return err
			})
			if bad = append(bad, more...); err != nil {
				return bad, err
			}
		}
		return bad, nil
	}
	for _, dies := range []int{5, 12} {
		if _, err := portions(dies); err == nil {
			t.Fatal("the script was not killed")
		}
	}
	bad, err := portions(0)
	if err != nil || len(bad) != 3 || bad[0] != rows[7] || bad[1] != rows[507] || bad[2] != rows[1007] {
		t.Fatalf("%d rows are bad, %v, want 3", len(bad), err)
	}
	var created int
	if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM video_catalog.videos").Scan(&created); err != nil || created != len(rows)-3 {
		t.Errorf("%d videos, %v, want %d: each good row once", created, err, len(rows)-3)
	}
}

// fill is the script of the recipe for a cache.
func fill(t testing.TB) *redis.Script {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, root+"/docs/recipes.md"), "```lua\n")
	script, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/recipes.md has no script for a cache")
	}
	return redis.NewScript(script)
}

// startRedis starts a Redis that ends with the test.
func startRedis(t testing.TB) *redis.Client {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed: the recipe for a cache is not run")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := listener.Addr().String()
	_ = listener.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	must(t, cmd.Start())
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() {
		_ = client.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pgtest.Eventually(t, patience, "Redis answers", func() bool { return client.Ping(context.Background()).Err() == nil })
	return client
}

// A cache that is filled only with a newer version has no old entry at rest, however slowly its readers fill it. A
// cache whose entries are only deleted by events keeps old ones: the case that the script is for.
func TestCacheIsNeverOlder(t *testing.T) {
	t.Parallel()
	client, script := startRedis(t), fill(t)
	const entries, versions = 50, 20
	stale := func(name string, put func(ctx context.Context, key string, version int) error, changed func(ctx context.Context, key string, version int) error) (n int) {
		var group errgroup.Group
		for i := range entries {
			key := fmt.Sprint(name, i)
			version := make(chan int, 1) // the view
			version <- 0
			read := func() int { v := <-version; version <- v; return v }
			group.Go(func() error { // the projector
				for v := range versions {
					<-version
					version <- v + 1
					if err := changed(t.Context(), key, v+1); err != nil {
						return err
					}
				}
				return nil
			})
			for range 2 { // readers, which fill what they miss
				group.Go(func() error {
					for range versions {
						if client.Exists(t.Context(), key).Val() > 0 {
							continue
						}
						v := read()
						time.Sleep(time.Duration(v%3) * time.Millisecond)
						if err := put(t.Context(), key, v); err != nil {
							return err
						}
					}
					return nil
				})
			}
		}
		must(t, group.Wait())
		for i := range entries {
			if v, err := client.HGet(t.Context(), fmt.Sprint(name, i), "version").Int(); err == nil && v != versions {
				n++
			}
		}
		return n
	}
	newer := func(ctx context.Context, key string, version int) error {
		return script.Run(ctx, client, []string{key}, version, "entry", 60).Err()
	}
	if n := stale("newer", newer, newer); n > 0 {
		t.Errorf("%d entries are old at rest, want none", n)
	}
	if n := stale("deleted", func(ctx context.Context, key string, version int) error {
		return client.HSet(ctx, key, "version", version).Err()
	}, func(ctx context.Context, key string, _ int) error { return client.Del(ctx, key).Err() }); n == 0 {
		t.Error("no entry is old at rest without the script: the test proves nothing")
	}
}

// BenchmarkRead compares a read of the view with a read of the cache, by 16 callers.
func BenchmarkRead(b *testing.B) {
	pool, client := pgtest.Pool(b, 16), startRedis(b)
	pgtest.Execute(b, pool, "CREATE TABLE view (id text PRIMARY KEY, version bigint, entry text)")
	pgtest.Execute(b, pool, "INSERT INTO view SELECT g, 1, repeat('x', 300) FROM generate_series(1, 10000) g")
	for i := range 10_000 {
		client.HSet(b.Context(), fmt.Sprint(i+1), "version", 1, "entry", strings.Repeat("x", 300))
	}
	for name, get := range map[string]func(id string) error{
		"view": func(id string) (err error) {
			var entry string
			return pool.QueryRow(b.Context(), "SELECT entry FROM view WHERE id = $1", id).Scan(&entry)
		},
		"cache": func(id string) error { return client.HGet(b.Context(), id, "entry").Err() },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetParallelism(8)
			b.RunParallel(func(p *testing.PB) {
				for i := 0; p.Next(); i++ {
					if err := get(fmt.Sprint(i%10_000 + 1)); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
