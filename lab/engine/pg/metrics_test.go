package pg_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// gauges returns the values that a reader gets, by name.
func gauges(t *testing.T, reader metric.Reader) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &data))
	values := make(map[string]float64)
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch gauge := m.Data.(type) {
			case metricdata.Gauge[int64]:
				values[m.Name] = float64(gauge.DataPoints[0].Value)
			case metricdata.Gauge[float64]:
				values[m.Name] = gauge.DataPoints[0].Value
			default:
				t.Errorf("%s is a %T", m.Name, gauge)
			}
		}
	}
	return values
}

// The gauges of the outbox show pending events, blocked and parked aggregates, and the age of
// the oldest event that is not blocked.
func TestOutboxIsObserved(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2")
	l.park("a1 a2", "a1")
	l.append(l.pool, "b1 A1 A2 A3")
	l.claim(1, hour)
	reader := metric.NewManualReader()
	must(t, l.Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")))
	got, again := gauges(t, reader), gauges(t, reader)
	same(t, "gauges of the same sample", got, again)
	if age := time.Duration(got["outbox.backlog.age"] * float64(time.Second)); (age - time.Since(epoch)).Abs() > time.Minute {
		t.Errorf("outbox.backlog.age = %s, want %s", age, time.Since(epoch))
	}
	delete(got, "outbox.backlog.age")
	delete(got, "database.transaction.age") // other tests use the server
	want := map[string]float64{
		"outbox.backlog": 6, "outbox.aggregates.blocked": 1, "outbox.aggregates.parked": 1, "outbox.partitions.ahead": 7,
	}
	same(t, "gauges", want, got)
}

// An empty outbox has no age.
func TestEmptyOutboxIsObserved(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	must(t, newLetters(t, 4).Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")))
	got := gauges(t, reader)
	for _, name := range []string{"outbox.backlog", "outbox.backlog.age", "outbox.aggregates.blocked"} {
		if value, ok := got[name]; !ok || value != 0 {
			t.Errorf("%s = %g, %t, want 0", name, value, ok)
		}
	}
}

// However large the backlog is, a sample reads only the rows that it counts.
// Readers within 5 s share a sample.
func TestObservingDoesNotScanTheBacklog(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	execute(t, l.pool, `
		WITH event AS (
			INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			SELECT (substr(video_catalog.uuid7_floor(now())::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid, 'number', n::text, 'NumberDrawn', 1, 1, '', now()
			FROM generate_series(1, 50000) n
			RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at
		), deferred AS (
			INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, repeat)
			SELECT 0, 0, event.*, '' FROM event WHERE aggregate_id::int % 2 = 0
		)
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT aggregate_id::int % 8, event.* FROM event WHERE aggregate_id::int % 2 = 1`)
	reader := metric.NewManualReader()
	must(t, l.Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")))
	read := func() int {
		l.read() // brings the statistics up to date
		return l.count(`
			SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables
			WHERE relname = 'outbox_deferred' OR relname LIKE 'outbox\_lane\__'`)
	}
	before := read()
	for range 20 {
		if got := gauges(t, reader)["outbox.backlog"]; got != 10_000 {
			t.Fatalf("outbox.backlog = %g, want 10000, where it stops counting", got)
		}
	}
	if rows := read() - before; rows < 10_000 || rows > 10_100 {
		t.Errorf("20 looks read %d rows, want the 10000 of one sample and few more", rows)
	}
	if _, err := l.pool.Exec(t.Context(), "TRUNCATE video_catalog.outbox_pending, video_catalog.outbox_deferred"); err != nil { // for the invariants, which are about letters
		t.Fatal(err)
	}
}

// Without the database its gauges are missing, and all other metrics are there. Readers
// get no error, because they would then drop all metrics.
func TestAbsentDatabaseHidesNoOtherMetrics(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	reader := metric.NewManualReader()
	meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
	for _, err := range []error{pg.NewOutbox(pool).Observe(meter), pg.NewInbox(pool).Observe(meter, []string{"consumer"})} {
		must(t, err)
	}
	other, err := meter.Int64Gauge("other")
	must(t, err)
	other.Record(t.Context(), 1)
	pool.Close()
	same(t, "gauges", map[string]float64{"other": 1}, gauges(t, reader))
}

// A database that does not respond delays one reader by the limit of each sample. It does
// not delay the next readers.
func TestSilentDatabaseDelaysOneReader(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	must(t, err)
	t.Cleanup(func() { silent.Close() })
	pool, err := pgxpool.New(t.Context(), "postgres://somebody@"+silent.Addr().String()+"/db?sslmode=disable")
	must(t, err)
	t.Cleanup(pool.Close)
	reader := metric.NewManualReader()
	must(t, pg.NewOutbox(pool).Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 100 {
		if err := reader.Collect(ctx, new(metricdata.ResourceMetrics)); err != nil {
			t.Fatalf("Collect() = %v, want that it does not wait for the database until its context ends", err)
		}
	}
}

// The gauge of the inbox shows the quarantine of its consumers.
func TestInboxIsObserved(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	inbox := pg.NewInbox(pool)
	for _, consumer := range []string{"consumer", "another"} {
		must(t, inbox.Quarantine(t.Context(), consumer, envelope.Quarantined{MessageID: "1", Payload: []byte("x"), Reason: "broken", PublishTime: epoch}))
	}
	reader := metric.NewManualReader()
	must(t, inbox.Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"), []string{"consumer"}))
	if got := gauges(t, reader)["consumer.quarantine"]; got != 1 {
		t.Errorf("consumer.quarantine = %g, want 1", got)
	}
}

// The gauge of the oldest transaction grows while one is open in another database of the server, and then falls.
func TestOldTransactionIsObserved(t *testing.T) {
	t.Parallel()
	elsewhere, err := pgtest.Pool(t, 1).Begin(t.Context())
	must(t, err)
	defer elsewhere.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is left to roll back when the test passes
	execute(t, elsewhere, "SELECT pg_current_xact_id()")
	reader := metric.NewManualReader()
	must(t, pg.NewInbox(pgtest.Pool(t, 1)).Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"), nil))
	age := func() float64 { return gauges(t, reader)["database.transaction.age"] }
	pgtest.Eventually(t, time.Minute, "it grows", func() bool { return age() > 1 })
	must(t, elsewhere.Rollback(t.Context()))
	pgtest.Eventually(t, time.Minute, "it falls", func() bool { return age() < 1 })
}
