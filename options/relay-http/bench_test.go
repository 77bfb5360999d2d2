package relayhttp

import (
	"bytes"
	"io"
	"net/http"
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
