package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localbroker"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
)

// copies is an environment variable that makes this test binary run the program with as many more
// projections of the videos, each with a subscription of its own.
const copies = "COPIES_UNDER_TEST"

func copied(i int) app.Subscription {
	all := videos().Subscriptions[0]
	all.ID, all.Consumer = fmt.Sprint(all.ID, i), fmt.Sprint(all.Consumer, i)
	return all
}

func init() {
	p := program()
	n, err := strconv.Atoi(os.Getenv(copies))
	for i := range n {
		p.Registrations = append(p.Registrations, app.Registration{Subscriptions: []app.Subscription{copied(i)}})
	}
	if err == nil {
		p.Main()
	}
}

// BenchmarkIdle measures a server that has nothing to do, after each subscription had 200 events: the
// time from its start until it is ready, its resident memory, its connections, and its queries per
// second.
func BenchmarkIdle(b *testing.B) {
	for _, subscriptions := range []int{1, 10, 50} {
		b.Run(fmt.Sprintf("subscriptions=%d", subscriptions), func(b *testing.B) {
			for b.Loop() {
				idle(b, subscriptions)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func idle(b *testing.B, subscriptions int) {
	s := newStack(b)
	client, err := s.pubsub.Client(b.Context(), project)
	must(b, err)
	defer client.Close()
	topic := localbroker.Topic{Name: names.VideoTopic.Name}
	for i := range subscriptions - 1 {
		topic.Subscriptions = append(topic.Subscriptions, copied(i).ID)
	}
	must(b, (localbroker.Resources{Schemaless: true}).Create(b.Context(), client, topic))
	database := s.pool.Config().ConnConfig.Database
	pgtest.Execute(b, s.pool, fmt.Sprintf("ALTER DATABASE %s SET log_statement = 'all'", database))
	start := time.Now()
	p := s.start(b, "PGAPPNAME=idle", copies+fmt.Sprint("=", subscriptions-1))
	ready := time.Since(start)
	const events, lasting = 200, 20 * time.Second
	for range events {
		_, err := p.videos().CreateVideo(b.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		must(b, err)
	}
	eventually(b, time.Minute, "all events are applied", func() bool {
		return s.count(b, "SELECT count(*) FROM video_catalog_read.inbox") == events*subscriptions
	})
	b.ReportMetric(time.Since(start).Seconds()*1000-ready.Seconds()*1000, "ms-to-apply")
	time.Sleep(10 * time.Second) // until the poll interval has grown to its longest
	before := queries(b, s)
	time.Sleep(lasting)
	b.ReportMetric((queries(b, s)-before)/lasting.Seconds(), "idle-queries/s")
	b.ReportMetric(ready.Seconds()*1000, "ms-to-ready")
	b.ReportMetric(residentMB(b, p.cmd.Process.Pid), "MB-resident")
	b.ReportMetric(float64(s.count(b, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'idle'", database)), "connections")
	if _, err := p.stop(b); err != nil {
		b.Error(err)
	}
}

// queries counts the queries in the log of the database server. It connects to
// another database, whose queries are not logged.
func queries(b *testing.B, s *stack) (n float64) {
	b.Helper()
	cfg := s.pool.Config().ConnConfig.Copy()
	cfg.Database = "postgres"
	conn, err := pgx.ConnectConfig(b.Context(), cfg)
	must(b, err)
	defer conn.Close(context.Background())
	if err := conn.QueryRow(b.Context(), `
		SELECT count(*) FROM regexp_matches(pg_read_file(current_setting('data_directory') || '/../postgres.log'), 'LOG:  execute', 'g')`).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

func residentMB(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(b, err)
	_, line, _ := bytes.Cut(status, []byte("VmRSS:"))
	var kB float64
	_, err = fmt.Sscanf(string(bytes.TrimSpace(line)), "%f kB", &kB)
	must(b, err)
	return kB / 1024
}

// stop sends SIGTERM and returns how long the server took to end, and its error.
func (p *process) stop(t testing.TB) (time.Duration, error) {
	t.Helper()
	start := time.Now()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	err := p.wait()
	return time.Since(start), err
}
