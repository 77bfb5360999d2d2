package relayhttp

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/pgtest"
)

// BenchmarkSink drains events of 1,000 keys to an endpoint that takes 10 ms, and compares with the usual loop: read the
// oldest event, post it, mark it as sent. The ratio must be 30 at least.
func BenchmarkSink(b *testing.B) {
	s := newStack(b)
	s.fault.Store(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Millisecond) }))
	s.start(outbox.Config{})
	for b.Loop() {
		s.add(1000, 1, 1)
		const few = 100
		start := time.Now()
		for range few {
			s.sendOldest()
		}
		loop := few / time.Since(start).Seconds()
		s.add(1000, 2, 10)
		start = time.Now()
		status, body := s.call(b.Context())
		rate := (10_000 - few) / time.Since(start).Seconds()
		if status != http.StatusOK {
			b.Fatal(body)
		}
		b.ReportMetric(rate, "events/s")
		b.ReportMetric(rate/loop, "×loop")
	}
}

func (s *stack) sendOldest() {
	var lane int16
	var seq int64
	var payload []byte
	row := s.pool.QueryRow(s.t.Context(), "SELECT lane, seq, payload FROM video_catalog.outbox_pending ORDER BY seq LIMIT 1")
	must(s.t, row.Scan(&lane, &seq, &payload))
	response, err := http.Post(s.Server.URL, "application/protobuf", bytes.NewReader(payload))
	must(s.t, err)
	_, _ = io.Copy(io.Discard, response.Body)
	response.Body.Close()
	pgtest.Execute(s.t, s.pool, "DELETE FROM video_catalog.outbox_pending WHERE lane = $1 AND seq = $2", lane, seq)
}

// BenchmarkDrain compares a call with `server drain`, each in a process of its own: its rate must be 0.95 of it at least,
// and its memory 1.1 of it at most.
func BenchmarkDrain(b *testing.B) {
	const events = 20_000
	s := newStack(b)
	for b.Loop() {
		s.add(1000, 1, events/1000)
		drain := s.command(outbox.Config{}, "drain")
		start := time.Now()
		must(b, drain.Start())
		peak := 0
		for done := waiting(drain.Wait); done.Err() == nil; time.Sleep(10 * time.Millisecond) {
			peak = max(peak, memory(drain.Process.Pid))
		}
		usual := events / time.Since(start).Seconds()

		s.add(1000, 1, events/1000)
		s.start(outbox.Config{})
		start = time.Now()
		if status, body := s.call(b.Context()); status != http.StatusOK {
			b.Fatal(body)
		}
		b.ReportMetric(events/time.Since(start).Seconds(), "events/s")
		b.ReportMetric(events/time.Since(start).Seconds()/usual, "×drain")
		b.ReportMetric(float64(memory(s.cmd.Process.Pid))/float64(peak), "×memory")
		b.ReportMetric(float64(memory(s.cmd.Process.Pid))/1024, "MiB")
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// waiting returns a context that ends with a process.
func waiting(wait func() error) context.Context {
	ctx, end := context.WithCancel(context.Background())
	go func() {
		defer end()
		_ = wait() // the next call says what is left
	}()
	return ctx
}

// memory returns the most memory that a process has had, in KiB; 0 after its end.
func memory(pid int) int {
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	found := regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(status)
	if found == nil {
		return 0
	}
	kib, _ := strconv.Atoi(string(found[1]))
	return kib
}
