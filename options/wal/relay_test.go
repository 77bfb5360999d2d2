package wal

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

// A switch and the start name each mistake that keeps a reader from the events, with its remedy. Nothing is changed.
func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const begins = "UPDATE video_catalog.outbox_relay SET slot = $1, mode = 'external'"
	if _, err := s.pool.Exec(t.Context(), begins, s.slot); err == nil || !strings.Contains(err.Error(), "appends do not read the mode") {
		t.Errorf("a mode that no append reads = %v, want an error", err)
	}
	pgtest.Execute(t, s.pool, beginSwitch)
	for _, test := range []struct{ breaks, says, mends string }{
		{"ALTER PUBLICATION video_catalog_outbox SET TABLE video_catalog.outbox", "without the column caller", "SELECT"},
		{"ALTER PUBLICATION video_catalog_outbox SET (publish_via_partition_root = false)", "publish_via_partition_root = true",
			"ALTER PUBLICATION video_catalog_outbox SET (publish_via_partition_root = true)"},
		{"ALTER PUBLICATION video_catalog_outbox SET (publish = 'insert, delete')", "publish = insert",
			"ALTER PUBLICATION video_catalog_outbox SET (publish = 'insert'); ALTER PUBLICATION video_catalog_outbox SET TABLE video_catalog.outbox (id, payload)"},
		{"SELECT pg_create_logical_replication_slot('" + s.slot + "', 'test_decoding')", "must have the plugin pgoutput", "SELECT pg_drop_replication_slot('" + s.slot + "')"},
	} {
		pgtest.Execute(t, s.pool, test.breaks)
		if _, err := s.relay(external); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("relay external after %q = %v, want %q", test.breaks, err, test.says)
		}
		pgtest.Execute(t, s.pool, begins, s.slot)
		if err := start(t.Context(), &app.Process{CommandPool: s.pool, Log: discard, Meter: noop.Meter{}}); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("start() after %q = %v, want %q", test.breaks, err, test.says)
		}
		pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_relay SET mode = 'lanes'")
		for mend := range strings.SplitSeq(test.mends, "; ") {
			pgtest.Execute(t, s.pool, mend)
		}
	}
	s.must(external)
}

// A server that does not decode its log, and a standby, take no switch.
func TestServersWithoutALog(t *testing.T) {
	t.Parallel()
	s := newService(t)
	standby := standbyOf(t, server)
	replica := pgtest.Pool(t, 1) // of a server with wal_level = replica
	for url, want := range map[string]string{replica.Config().ConnString(): "wal_level is replica and must be logical", standby.DSN(s.slot): "this server is a standby"} {
		if _, err := s.server(url, "relay", external); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("relay external = %v, want %q", err, want)
		}
	}
	// The slot went with wal_level: the way back needs neither.
	pgtest.Execute(t, replica, beginSwitch)
	pgtest.Execute(t, replica, "UPDATE video_catalog.outbox_relay SET mode = 'external'")
	if out, err := s.server(replica.Config().ConnString(), "relay", lanes, "--since", "2026-01-01T00:00:00Z"); err != nil || !strings.Contains(out, "mode lanes") {
		t.Errorf("relay lanes = %q, %v, want mode lanes", out, err)
	}
}

// A switch needs the rights of the service and REPLICATION, which the error names.
func TestRightsOfASwitch(t *testing.T) {
	t.Parallel()
	s := newService(t)
	user := "user_" + s.slot
	pgtest.Execute(t, s.pool, "CREATE USER "+user+" IN ROLE video_catalog_rw")
	url := strings.Replace(s.url, "postgres@", user+"@", 1)
	if _, err := s.server(url, "relay", external); err == nil || !strings.Contains(err.Error(), "as a user with REPLICATION") {
		t.Errorf("relay external = %v, want the right that is missing", err)
	}
	pgtest.Execute(t, s.pool, "ALTER ROLE "+user+" REPLICATION")
	for _, mode := range []string{external, lanes} {
		if _, err := s.server(url, "relay", mode); err != nil {
			t.Errorf("relay %s = %v", mode, err)
		}
		s.append("a", 1+int64(len(mode))) // as the service does
	}
}

// While the mode is not lanes, a build without the option does not start: it would publish nothing. The option's commands say where events are.
func TestBuildWithoutTheOption(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const refused, handed = "this build lacks 00300_relay.sql, and would miss events: events are handed to the log", "events are handed to the log"
	broker := app.Option{Name: "ledger", NewBroker: func(context.Context, *app.Process) (app.Broker, error) {
		return app.Broker{Topic: func(string) outbox.Broker { return s }, Stop: func() {}}, nil
	}}
	defer s.relayed()() // reads in mode wal
	for _, mode := range []string{external, lanes, wal, lanes} {
		s.must(mode)
		err := db.Check(t.Context(), migrationsWithout(), s.pool)
		if (mode != lanes) != (err != nil) || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("Check() in mode %s = %v, want an error in the modes of the log", mode, err)
		}
		if err := db.Check(t.Context(), pgtest.Options(), s.pool); err != nil {
			t.Errorf("Check() of a build with the option in mode %s = %v", mode, err)
		}
		for _, command := range []string{"status", "drain"} {
			var out strings.Builder
			program := app.Program{Options: []app.Option{Option(), broker}}
			err := program.Run(t.Context(), []string{command}, []string{"DATABASE_URL=" + s.url, "BROKER=ledger"}, &out, &out)
			if err != nil || strings.Contains(out.String(), handed) != (mode != lanes) {
				t.Errorf("%s in mode %s = %q, %v: want %q in the modes of the log only", command, mode, &out, err, handed)
			}
		}
	}
}

// In the modes of the log the backlog has its age, for the alert OutboxStalled: it grows while the reader confirms nothing. The other
// series of the metric has the same name and description.
func TestBacklogAgeOfTheLog(t *testing.T) {
	t.Parallel()
	s := newService(t)
	queries := sqlcgen.New(pg.Autocommit(s.pool))
	age := func() (ofLog float64, series int) {
		t.Helper()
		reader := metric.NewManualReader()
		meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
		pgtest.Must(t, errors.Join(observe(queries, meter), pg.NewOutbox(s.pool).Observe(meter)))
		var all metricdata.ResourceMetrics
		pgtest.Must(t, reader.Collect(t.Context(), &all))
		for _, m := range all.ScopeMetrics[0].Metrics {
			if gauge, ok := m.Data.(metricdata.Gauge[float64]); ok && m.Name == "outbox.backlog.age" {
				if series > 0 {
					t.Error("there are two metrics of this name")
				}
				for _, point := range gauge.DataPoints {
					if series++; point.Attributes.HasValue("relay") {
						ofLog = point.Value
					}
				}
			}
		}
		return ofLog, series
	}
	if got, series := age(); got != 0 || series != 1 {
		t.Errorf("in mode lanes the age is %v in %d series, want that of the lanes only", got, series)
	}
	for _, mode := range []string{external, wal} {
		s.must(lanes)
		s.must(mode)
		s.append(mode, 1)
		stop := s.background(func(ctx context.Context) { _ = s.program(ctx, t.Output(), s.url, "serve") })
		s.eventually(1, "SELECT count(*) FROM video_catalog.outbox_relay r JOIN pg_replication_slots s ON s.slot_name = r.slot WHERE r.mark_lsn > s.confirmed_flush_lsn")
		stop()
		pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_relay SET mark_time = mark_time - interval '90 seconds'")
		if got, series := age(); got < 90 || series != 2 {
			t.Errorf("in mode %s without a reader the age is %v in %d series, want 90 s", mode, got, series)
		}
		s.readOnce(t.Context(), false)
		pgtest.Execute(t, s.pool, "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", s.slot) // as a heartbeat does
		if got, _ := age(); got != 0 {
			t.Errorf("the reader has confirmed all, and the age is %v", got)
		}
		if out := s.must("status"); !strings.Contains(out, "no reader, reserved, keeps") || !strings.Contains(out, "is 0s behind") {
			t.Errorf("status = %q, want the slot, and the age", out)
		}
	}
}

// The properties lead the events of each aggregate type to the topic of its type.
func TestRouteLeadsToTheTopics(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("debezium/outbox.properties")
	pgtest.Must(t, err)
	routes := regexp.MustCompile(`(?m)^transforms\.outbox\.route\.topic\.replacement=(.*)$`).FindAllStringSubmatch(string(text), -1)
	route := routes[len(routes)-1][1] // the last counts
	for _, topic := range names.Topics() {
		for _, of := range topic.AggregateTypes {
			got := strings.ReplaceAll(strings.ReplaceAll(route, "${routedByValue}", of), "_", "-")
			if !topic.Foreign && (got != topic.Name || strings.Count(of, "_") > 3) {
				t.Errorf("events of the type %s go to the topic %s, want %s: change the route, and add a step for each underscore", of, got, topic.Name)
			}
		}
	}
}
