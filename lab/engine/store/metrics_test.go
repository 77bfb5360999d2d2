package store_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// gauges returns what a reader sees, by name, and by table where there is one.
func gauges(t *testing.T, reader metric.Reader) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch gauge := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, point := range gauge.DataPoints {
					table, _ := point.Attributes.Value("table")
					values[m.Name+table.AsString()] = float64(point.Value)
				}
			case metricdata.Gauge[float64]:
				values[m.Name] = gauge.DataPoints[0].Value
			default:
				t.Errorf("%s is a %T", m.Name, gauge)
			}
		}
	}
	return values
}

// The gauges of the outbox tell pending, blocked and parked events and leased
// lanes apart; the ages are those of the oldest.
func TestOutboxIsObserved(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2")
	l.park("a1 a2", "a1")
	l.append(l.pool, "b1 A1 A2 A3")
	l.claim(1, hour)
	reader := metric.NewManualReader()
	if err := l.Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")); err != nil {
		t.Fatal(err)
	}
	got, again := gauges(t, reader), gauges(t, reader)
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("gauges of the same sample (-first +second):\n%s", diff)
	}
	for _, name := range []string{"outbox.backlog.age", "outbox.blocked.age"} {
		if age := time.Duration(got[name] * float64(time.Second)); (age - time.Since(epoch)).Abs() > time.Minute {
			t.Errorf("%s = %s, want %s", name, age, time.Since(epoch))
		}
		delete(got, name)
	}
	for _, name := range []string{"outbox.table.sizeoutbox", "outbox.table.sizeoutbox_pending"} {
		if got[name] < 8192 {
			t.Errorf("%s = %g, want a page at least", name, got[name])
		}
		delete(got, name)
	}
	want := map[string]float64{
		"outbox.backlog": 6, "outbox.aggregates.blocked": 1, "outbox.aggregates.parked": 1, "outbox.lanes.leased": 1, "outbox.partitions.ahead": 7,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("gauges (-want +got):\n%s", diff)
	}
}

// An empty outbox has no age.
func TestEmptyOutboxIsObserved(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	if err := newLetters(t, 4).Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")); err != nil {
		t.Fatal(err)
	}
	got := gauges(t, reader)
	for _, name := range []string{"outbox.backlog", "outbox.backlog.age", "outbox.blocked.age", "outbox.aggregates.blocked", "outbox.lanes.leased"} {
		if value, ok := got[name]; !ok || value != 0 {
			t.Errorf("%s = %g, %t, want 0", name, value, ok)
		}
	}
}

// However large the backlog is and however often somebody looks, a sample
// reads as many rows as it counts.
func TestObservingDoesNotScanTheBacklog(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	if _, err := l.pool.Exec(t.Context(), `
		WITH event AS (
			INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			SELECT (substr(video_catalog.uuid7_floor(now())::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid, 'number', n::text, 'NumberDrawn', 1, 1, '', now()
			FROM generate_series(1, 50000) n
			RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at
		)
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT CASE WHEN random() < 0.5 THEN -1 ELSE aggregate_id::int % 8 END, event.* FROM event`); err != nil {
		t.Fatal(err)
	}
	reader := metric.NewManualReader()
	if err := l.Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")); err != nil {
		t.Fatal(err)
	}
	read := func() int {
		l.read() // brings the statistics up to date
		return l.count(`
			SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables
			WHERE relid IN (SELECT relid FROM pg_partition_tree('video_catalog.outbox_pending'))`)
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
	if _, err := l.pool.Exec(t.Context(), "TRUNCATE video_catalog.outbox_pending"); err != nil { // for the invariants, which are about letters
		t.Fatal(err)
	}
}

// Without the database its gauges are not there, and all others are: readers get
// no error, for which they would drop everything.
func TestAbsentDatabaseHidesNoOtherMetrics(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 1)
	reader := metric.NewManualReader()
	meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
	for _, err := range []error{store.NewOutbox(pool).Observe(meter), store.NewInbox(pool).Observe(meter, []string{"consumer"})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	other, err := meter.Int64Gauge("other")
	if err != nil {
		t.Fatal(err)
	}
	other.Record(t.Context(), 1)
	pool.Close()
	if diff := cmp.Diff(map[string]float64{"other": 1}, gauges(t, reader)); diff != "" {
		t.Errorf("gauges (-want +got):\n%s", diff)
	}
}

// A database that does not answer keeps a reader waiting once, for all samples
// together; and one who has a second, as at the end of a process, keeps half of it
// for sending the rest, also when another reader waits for the same samples.
func TestSilentDatabaseHoldsReadersUpOnce(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	pool, err := pgxpool.New(t.Context(), "postgres://somebody@"+silent.Addr().String()+"/db?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	observe := func(readers ...metric.Option) {
		meter := metric.NewMeterProvider(readers...).Meter("test")
		for _, err := range []error{store.NewOutbox(pool).Observe(meter), store.NewInbox(pool).Observe(meter, []string{"consumer"})} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	alone, patient, hurried := metric.NewManualReader(), metric.NewManualReader(), metric.NewManualReader()
	observe(metric.WithReader(alone))
	observe(metric.WithReader(patient), metric.WithReader(hurried))

	var reading sync.WaitGroup
	for _, reader := range []*metric.ManualReader{alone, patient} {
		reading.Go(func() {
			start := time.Now()
			if err := reader.Collect(t.Context(), new(metricdata.ResourceMetrics)); err != nil {
				t.Errorf("Collect() = %v", err)
			}
			if waited := time.Since(start); waited >= 4*time.Second {
				t.Errorf("Collect() took %s, want 2s and not twice that", waited)
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // so that the patient one has begun
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if err := hurried.Collect(ctx, new(metricdata.ResourceMetrics)); err != nil || time.Until(deadline) <= 0 {
		t.Errorf("Collect() within a second = %v with %s left, want nil and time to send it", err, time.Until(deadline))
	}
	reading.Wait()
}

// The gauges of the inbox show the quarantine of their consumers, and the tables.
func TestInboxIsObserved(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	inbox := store.NewInbox(pool)
	for _, consumer := range []string{"consumer", "another"} {
		if err := inbox.Quarantine(t.Context(), consumer, envelope.Quarantined{MessageID: "1", Payload: []byte("x"), Reason: "broken", PublishTime: epoch}); err != nil {
			t.Fatal(err)
		}
	}
	reader := metric.NewManualReader()
	if err := inbox.Observe(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"), []string{"consumer"}); err != nil {
		t.Fatal(err)
	}
	got := gauges(t, reader)
	if got["consumer.quarantine"] != 1 {
		t.Errorf("consumer.quarantine = %g, want 1", got["consumer.quarantine"])
	}
	if want := float64(2 * (len("x") + len("{}") + len("broken"))); got["consumer.quarantine.size"] != want { // of both
		t.Errorf("consumer.quarantine.size = %g, want %g", got["consumer.quarantine.size"], want)
	}
	if size := got["consumer.table.sizeinbox"]; size < 8192 {
		t.Errorf("consumer.table.size of inbox = %g, want a page at least", size)
	}
}
