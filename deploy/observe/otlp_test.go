package observe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A query of Prometheus becomes the same query of the metrics sent by OTLP.
func TestQueryOfOTLP(t *testing.T) {
	known, err := readMetrics(metricsPages(".")...)
	must(t, err)
	for _, c := range []struct{ name, query, want string }{
		{"gauge with a unit", `max(outbox_backlog_age_seconds) > 60`, `max({"outbox.backlog.age"}) > 60`},
		{"gauge without one", `max(outbox_backlog)`, `max({"outbox.backlog"})`},
		{"counter, range", `sum(increase(outbox_events_total[30m]))`, `sum(increase({"outbox.events"}[30m]))`},
		{"unit and total", `rate(pgxpool_empty_acquire_wait_time_nanoseconds_total[5m]) / 1e9`, `rate({"pgxpool.empty_acquire_wait_time"}[5m]) / 1e9`},
		{
			"histogram", `histogram_quantile(0.95, sum by (le) (rate(consumer_lag_seconds_bucket[5m])))`,
			`histogram_quantile(0.95, sum by (le) (rate({"consumer.lag_bucket"}[5m])))`,
		},
		{"its parts", `outbox_publish_delay_seconds_sum / outbox_publish_delay_seconds_count`, `{"outbox.publish.delay_sum"} / {"outbox.publish.delay_count"}`},
		{
			"labels of a clause", `sum by (le, rpc_method) (rate(rpc_server_call_duration_seconds_bucket[5m]))`,
			`sum by (le, "rpc.method") (rate({"rpc.server.call.duration_bucket"}[5m]))`,
		},
		{"clause behind", `sum(consumer_events_total) without(outcome,job)`, `sum({"consumer.events"}) without(outcome,job)`},
		{
			"vectors by a label", `rpc_server_call_duration_seconds_count / on (error_type) group_left () consumer_failures_total`,
			`{"rpc.server.call.duration_count"} / on ("error.type") group_left () {"consumer.failures"}`,
		},
		{
			"unless, offset", `outbox_events_total unless outbox_events_total offset 30m`,
			`{"outbox.events"} unless {"outbox.events"} offset 30m`,
		},
		{
			"matchers", `rpc_server_call_duration_seconds_count{rpc_response_status_code=~"INTERNAL|UNAVAILABLE", rpc_method!="a.v1.B/C"}[1h]`,
			`{"rpc.server.call.duration_count", "rpc.response.status_code"=~"INTERNAL|UNAVAILABLE", "rpc.method"!="a.v1.B/C"}[1h]`,
		},
		{"label without a dot", `outbox_events_total{outcome="published"}`, `{"outbox.events", outcome="published"}`},
		{
			"a string with names, braces and quotes", `consumer_events_total{outcome!~"outbox_backlog} by (error_type) \"{"}`,
			`{"consumer.events", outcome!~"outbox_backlog} by (error_type) \"{"}`,
		},
		{
			"labels that nobody renames", `consumer_lag_seconds_bucket{ job = "a",le="5", }`, `{"consumer.lag_bucket", job = "a",le="5",}`,
		},
		{"no matchers", `outbox_backlog{} or outbox_backlog { }`, `{"outbox.backlog"} or {"outbox.backlog"}`},
		{
			"more lines, subquery", "max_over_time(\n  outbox_backlog {\n    job=\"a\"\n  } [1h:5m]\n)",
			"max_over_time(\n  {\"outbox.backlog\", job=\"a\"} [1h:5m]\n)",
		},
		{
			"metrics of others", `max(pubsub_googleapis_com:subscription_num_undelivered_messages{ subscription_id="outbox_backlog"}) > 0`,
			`max(pubsub_googleapis_com:subscription_num_undelivered_messages{ subscription_id="outbox_backlog"}) > 0`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := known.otlp(c.query)
			if err != nil || got != c.want {
				t.Errorf("otlp(%s) = %s, %v, want %s", c.query, got, err, c.want)
			}
		})
	}
}

// Unknown syntax and unknown metrics are errors with their names.
func TestQueryOfOTLPRefuses(t *testing.T) {
	known, err := readMetrics(metricsPages(".")...)
	must(t, err)
	for _, c := range []struct{ name, query, want string }{
		{"metric that is not there", `max(outbox_backlog_age)`, "outbox_backlog_age "},
		{"histogram itself", `consumer_lag_seconds`, "consumer_lag_seconds "},
		{"name as it is sent", `{"outbox.backlog"}`, `{"outbox.backlog"}`},
		{"what the scraper adds", `up == 0`, "up "},
		{"what describes the target", `target_info`, "target_info "},
		{"what only Prometheus has", `rate(process_cpu_seconds_total[5m])`, "process_cpu_seconds_total "},
		{"word as a metric", `sum{job="a"}`, "sum "},
		{"matcher of another metric", `outbox_backlog{outcome="published"}`, "outbox_backlog: outcome "},
		{"clause of another metric", `sum by (error_type) (outbox_backlog)`, "error_type "},
		{"label that Prometheus adds", `outbox_backlog{instance="a"}`, "outbox_backlog: instance "},
		{"clause of what Prometheus adds", `sum by (instance) (outbox_backlog)`, "instance "},
		{"scope, which Prometheus does not have", `outbox_backlog{otel_scope_name="a"}`, "outbox_backlog: otel_scope_name "},
		{"attribute that prose only looks like", `outbox_aggregates_blocked{person="a"}`, "person "},
		{"name as a matcher", `outbox_backlog{__name__="x"}`, "__name__ "},
		{"selector without a name", `{job="a"}`, `{job="a"}`},
		{"label as a text", `label_replace(outbox_backlog, "a", "$1", "error_type", "(.*)")`, "\"a\""},
		{"other quotes", `outbox_backlog{job='a'}`, "job='a'"},
		{"half a matcher", `outbox_backlog{job=}`, "job="},
		{"open braces", `outbox_backlog{job="a"`, `{job="a"`},
		{"function that is new here", `deriv(outbox_backlog[5m])`, "deriv "},
		{"comment", "outbox_backlog # waits", "# waits"},
		{"time", `outbox_backlog @ 0`, "@ 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _, err := known.otlp(c.query); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("otlp(%s) = %s, %v, want an error that names %s", c.query, got, err, c.want)
			}
		})
	}
}

// Two metrics, or two attributes, with the same name in Prometheus cannot be distinguished.
func TestOneNameInPrometheusIsRefused(t *testing.T) {
	for _, c := range []struct{ page, want string }{
		{"| `a.b` | `a_b` | gauge | | | A. |\n| `a_b` | `a_b` | gauge | | | B. |\n", "a.b and a_b are both called a_b "},
		{"| `a.b` | `a_b` | histogram | s | | A. |\n| `a.b.count` | `a_b_count` | gauge | | | B. |\n", "a.b_count and a.b.count are both called a_b_count "},
		{"| `a` | `a` | gauge | | x.y, x_y | A. |\n", "x.y and x_y of a "},
	} {
		page := filepath.Join(t.TempDir(), "metrics.md")
		must(t, os.WriteFile(page, []byte(c.page), 0o600))
		if _, err := readMetrics(page); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("readMetrics of\n%s = %v, want an error with %s", c.page, err, c.want)
		}
	}

	known := metrics{"a": {"a", map[string]string{"x_y": "x.y"}}, "b": {"b", map[string]string{"x_y": "x_y"}}}
	for _, query := range []string{`sum by (x_y) (a or b)`, `a / on (x_y) b`, `a / b`} {
		if got, _, err := known.otlp(query); err == nil || !strings.Contains(err.Error(), "b: its label x_y ") {
			t.Errorf("otlp(%s) = %s, %v, want an error that names b and x_y", query, got, err)
		}
	}
}

// A source that uses an unknown metric is refused with the name of the source.
func TestFilesRefuseUnknownMetrics(t *testing.T) {
	for _, c := range []struct{ source, old, changed, want string }{
		{alerts, "max(outbox_backlog_age_seconds{", "max(outbox_backlog_age{", "alerts.yaml: rule OutboxStalled: outbox_backlog_age "},
		{"dashboard.yaml", "expr: max(outbox_backlog),", "expr: max(outbox_waiting),", `dashboard.yaml: panel "Events waiting": query "max(outbox_waiting)": outbox_waiting `},
		{"dashboard.yaml", "legend: outcome}", "legend: outcomes}", `dashboard.yaml: panel "Events by outcome": legend outcomes `},
	} {
		dir := filepath.Join(t.TempDir(), "deploy", "observe")
		for _, path := range append(metricsPages("."), alerts, cloudAlerts, "dashboard.yaml") {
			content := read(t, path)
			if path == c.source {
				content = strings.Replace(content, c.old, c.changed, 1)
			}
			copied := filepath.Join(dir, path)
			must(t, os.MkdirAll(filepath.Dir(copied), 0o755))
			must(t, os.WriteFile(copied, []byte(content), 0o600))
		}
		if _, err := Files(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Files() with %s = %v, want an error with %s", c.changed, err, c.want)
		}
	}
}
