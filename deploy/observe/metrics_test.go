package observe

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/telemetry"
	"example.com/videocatalog/internal/transport"
)

// scope is the name of the meters of the service.
const scope = "example.com/videocatalog"

var update = flag.Bool("update", false, "write the page of metrics again")

// metrics.md lists every instrument that no option makes, as the code makes it.
// After a change: go test ./deploy/observe -run TestMetricsAreDocumented -update
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	want := pageOf(t, instruments(t))
	if *update {
		must(t, os.WriteFile(metricsPage, want, 0o600))
	}
	got, err := os.ReadFile(metricsPage)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("metrics.md is not what the code has: run go test ./deploy/observe -run TestMetricsAreDocumented -update; it should be\n%s", want)
	}
}

// instruments makes every component that measures, and returns their instruments.
func instruments(t *testing.T) []sdkmetric.Instrument {
	t.Helper()
	made := make(map[string]sdkmetric.Instrument)
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()), sdkmetric.WithView(func(i sdkmetric.Instrument) (sdkmetric.Stream, bool) {
		made[i.Name] = i
		return sdkmetric.Stream{}, false
	}))
	tel := &telemetry.Telemetry{Metrics: provider}
	meter := tel.Meter(scope)
	check := func(err error) {
		t.Helper()
		must(t, err)
	}
	_, err := outbox.New(nil, nil, outbox.Config{}, nil, meter)
	check(err)
	_, err = consumer.New(consumer.Config{}, consumer.Input{Source: consumer.PubSub(new(pubsub.Subscriber), 1), Consumer: "test"}, nil, nil, meter)
	check(err)
	check(pg.NewOutbox(nil).Observe(meter))
	check(pg.NewInbox(nil).Observe(meter, nil))
	tel.QueryTracer()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	check(err)
	defer pool.Close()
	check(tel.ObservePool(pool, "commands"))
	check(runtime.Start(runtime.WithMeterProvider(provider)))

	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(err)
	srv, err := transport.New(transport.Config{}, transport.Deps{Metrics: provider, Listener: listener, Log: slog.Default()})
	check(err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	check(srv.Run(ended)) // releases what it holds

	all := make([]sdkmetric.Instrument, 0, len(made))
	for _, i := range made {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b sdkmetric.Instrument) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// kinds has the name of a kind of instrument in the documentation, and its kind in Prometheus.
var kinds = map[sdkmetric.InstrumentKind]struct {
	name string
	kind otlptranslator.MetricType
}{
	sdkmetric.InstrumentKindCounter:                 {"counter", otlptranslator.MetricTypeMonotonicCounter},
	sdkmetric.InstrumentKindObservableCounter:       {"counter", otlptranslator.MetricTypeMonotonicCounter},
	sdkmetric.InstrumentKindUpDownCounter:           {"gauge", otlptranslator.MetricTypeNonMonotonicCounter},
	sdkmetric.InstrumentKindObservableUpDownCounter: {"gauge", otlptranslator.MetricTypeNonMonotonicCounter},
	sdkmetric.InstrumentKindGauge:                   {"gauge", otlptranslator.MetricTypeGauge},
	sdkmetric.InstrumentKindObservableGauge:         {"gauge", otlptranslator.MetricTypeGauge},
	sdkmetric.InstrumentKindHistogram:               {"histogram", otlptranslator.MetricTypeHistogram},
}

// prometheusName is the name that Prometheus has for an instrument.
func prometheusName(t *testing.T, i sdkmetric.Instrument) string {
	t.Helper()
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	name, err := namer.Build(otlptranslator.Metric{Name: i.Name, Unit: i.Unit, Type: kinds[i.Kind].kind})
	must(t, err)
	return name
}

// groups are the parts of the page, by the first word of a name.
var groups = []struct{ prefix, title, text string }{
	{"outbox", "The outbox and its publisher", "Backlog, age, aggregates and partitions are measured in the database, at most every 5 s. They are the same in every process: use max, never sum."},
	{"consumer", "The projector", ""},
	{"database", "Old transactions", ""},
	{"rpc", "Calls", "Health checks and reflection are not counted. error.type repeats the code for UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS only."},
	{"server", "Refused calls", ""},
	{"db", "Statements", ""},
	{"pgxpool", "Connection pools", "The pools are commands and commands.calls, and with a second database queries and queries.calls. API calls use the pools named .calls."},
	{"go", "The Go runtime", ""},
}

// attributesOf has the attributes of an instrument by its name. By the first word of a name it has the attributes that all
// instruments with this first word have. An instrument that is not listed has none.
var attributesOf = map[string][]string{
	"outbox.events":        {"outcome"},
	"consumer.events":      {"aggregate_type", "outcome"},
	"consumer.lag":         {"aggregate_type"},
	"consumer.failures":    {"error.type"},
	"database":             {"side"},
	"rpc":                  {"error.type", "rpc.method", "rpc.response.status_code", "rpc.system.name"},
	"server.calls.refused": {"kind"},
	"db":                   {"db.system.name", "pgx.operation.type"},
	"pgxpool":              {"db.client.connection.pool.name", "db.system.name"},
	"go.memory.used":       {"go.memory.type"},
}

func attributes(name string) []string {
	prefix, _, _ := strings.Cut(name, ".")
	return append(slices.Clone(attributesOf[prefix]), attributesOf[name]...)
}

func pageOf(t *testing.T, all []sdkmetric.Instrument) []byte {
	t.Helper()
	var out bytes.Buffer
	out.WriteString(`# Metrics

<!-- Code generated by go test ./deploy/observe -run TestMetricsAreDocumented -update. DO NOT EDIT. -->

Look up a metric here to write a query, an alert or a panel. How to read metrics from a process: [observability.md](../../docs/observability.md).

Each metric has its OpenTelemetry name and its Prometheus name. In Prometheus a histogram also has ` + "`_bucket`, `_sum` and `_count`" + `, and the
dots of attributes are underscores. Each attribute has few values.
`)
	left := slices.Clone(all)
	for _, group := range groups {
		fmt.Fprintf(&out, "\n## %s\n\n", group.title)
		if group.text != "" {
			fmt.Fprintf(&out, "%s\n\n", group.text)
		}
		out.WriteString("| name | in Prometheus | kind | unit | attributes | meaning |\n| --- | --- | --- | --- | --- | --- |\n")
		left = slices.DeleteFunc(left, func(i sdkmetric.Instrument) bool {
			if !strings.HasPrefix(i.Name, group.prefix+".") {
				return false
			}
			fmt.Fprintf(&out, "| `%s` | `%s` | %s | %s | %s | %s |\n",
				i.Name, prometheusName(t, i), kinds[i.Kind].name, i.Unit, strings.Join(attributes(i.Name), ", "), i.Description)
			return true
		})
	}
	if len(left) > 0 {
		t.Errorf("instruments without a group: %+v", left)
	}
	for name := range attributesOf {
		if !slices.ContainsFunc(all, func(i sdkmetric.Instrument) bool { return i.Name == name || strings.HasPrefix(i.Name, name+".") }) {
			t.Errorf("attributes of %s, which is no instrument", name)
		}
	}
	return out.Bytes()
}
