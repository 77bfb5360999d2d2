// Package promql tests the queries of Cloud Monitoring with the parser of Prometheus: deploy/observe makes them, and has no
// parser. It is a module of its own, so that no other module depends on Prometheus. go test needs -count=1 here, because its
// cache does not see changes of files outside of this module.
package promql

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const (
	root    = "../../.."
	observe = "../"
)

// Each query of a policy and of the dashboard is PromQL, and equals its source except for the names of metrics and labels.
func TestQueriesOfCloudMonitoringAreTheirSources(t *testing.T) {
	sources, queries := sources(t), queries(t)
	if got, want := slices.Sorted(maps.Keys(queries)), slices.Sorted(maps.Keys(sources)); !slices.Equal(got, want) || len(got) < 40 {
		t.Fatalf("queries of %q, want those of %q", got, want)
	}
	names := readNames(t)
	for where, query := range queries {
		got, err := parser.ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v in %s", where, err, query)
			continue
		}
		want, err := parser.ParseExpr(sources[where])
		if err != nil {
			t.Errorf("%s: %v in its source, %s", where, err, sources[where])
			continue
		}
		for _, op := range matchedByScope(got) {
			t.Errorf("%s: %s matches metrics of different libraries by all labels, which have the scope of the library in Cloud Monitoring: write on()", where, op)
		}
		if !strings.Contains(query, "_googleapis_com:") { // Google's own metrics and labels have the same names in both
			for _, unknown := range names.restore(got) {
				t.Errorf("%s: nothing sends %s, in %s", where, unknown, query)
			}
		}
		if got.String() != want.String() {
			t.Errorf("%s is\n%s\nand its source\n%s", where, got, want)
		}
	}
}

// matchedByScope finds operations that also match the labels of the scope, and no others. The test above relies on it.
func TestMatchedByScope(t *testing.T) {
	for query, want := range map[string]int{
		`{"a.b"} / {"a.c"}`:                            0,
		`{"a.b"} / {"b.c"}`:                            1,
		`rate({"a.b"}[5m]) / rate({"b.c"}[5m]) / 1e9`:  1,
		`{"a.b"} / on (job) {"b.c"}`:                   0,
		`{"a.b"} unless ignoring (job) {"b.c"}`:        1,
		`sum({"a.b"}) / max by (job) ({"b.c"})`:        0,
		`sum({"a.b"}) / {"b.c"}`:                       1,
		`sum without (job) ({"a.b"}) and sum({"b.c"})`: 1,
		`sum({"a.b"} or {"b.c"})`:                      0,
	} {
		expr, err := parser.ParseExpr(query)
		must(t, err)
		if got := matchedByScope(expr); len(got) != want {
			t.Errorf("matchedByScope(%s) = %q, want %d", query, got, want)
		}
	}
}

// matchedByScope are the operations of two vectors that match metrics of different libraries by all labels. In Cloud Monitoring
// the scope of a library is one of the labels. The first word of a metric names its library. "or" is left out: it keeps both.
func matchedByScope(expr parser.Expr) []string {
	var found []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if op, ok := node.(*parser.BinaryExpr); ok && op.VectorMatching != nil && !op.VectorMatching.On && op.Op != parser.LOR {
			libraries := scopes(op)
			slices.Sort(libraries)
			if len(slices.Compact(libraries)) > 1 {
				found = append(found, op.String())
			}
		}
		return nil
	})
	return found
}

// scopes are the libraries whose scope is in the labels of a result: an aggregation by labels leaves it out.
func scopes(node parser.Node) []string {
	switch node := node.(type) {
	case *parser.AggregateExpr:
		if !node.Without {
			return []string{""}
		}
	case *parser.VectorSelector:
		for _, m := range node.LabelMatchers {
			if m.Name == labels.MetricName {
				library, _, _ := strings.Cut(m.Value, ".")
				return []string{library}
			}
		}
	}
	var found []string
	for _, child := range parser.Children(node) {
		found = append(found, scopes(child)...)
	}
	return found
}

// names maps the names of metrics and labels as they are sent to their names in Prometheus.
type names struct{ metrics, labels map[string]string }

func readNames(t *testing.T) names {
	t.Helper()
	n := names{metrics: map[string]string{}, labels: map[string]string{"job": "job", "le": "le"}}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\| (\\w+) \\|[^|]*\\|([^|]*)\\|")
	pages, err := filepath.Glob(root + "/options/*/README.md")
	must(t, err)
	var text []byte
	for _, page := range append(pages, root+"/deploy/observe/metrics.md") {
		text = append(text, read(t, page)...)
	}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		parts := []string{""}
		if m[3] == "histogram" {
			parts = []string{"_bucket", "_sum", "_count"}
		}
		for _, part := range parts {
			n.metrics[m[1]+part] = m[2] + part
		}
		for attribute := range strings.SplitSeq(strings.TrimSpace(m[4]), ", ") {
			n.labels[attribute] = strings.ReplaceAll(attribute, ".", "_")
		}
	}
	return n
}

// restore gives metrics and labels of a query their names in Prometheus, and returns those that have none.
func (n names) restore(expr parser.Expr) (unknown []string) {
	rename := func(name *string, known map[string]string) {
		if known[*name] == "" {
			unknown = append(unknown, *name)
		}
		*name = known[*name]
	}
	all := func(list []string) {
		for i := range list {
			rename(&list[i], n.labels)
		}
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.AggregateExpr:
			all(node.Grouping)
		case *parser.BinaryExpr:
			if node.VectorMatching != nil {
				all(node.VectorMatching.MatchingLabels)
				all(node.VectorMatching.Include)
			}
		case *parser.VectorSelector:
			for _, m := range node.LabelMatchers {
				if m.Name == labels.MetricName {
					rename(&m.Value, n.metrics)
					node.Name = m.Value
				} else {
					rename(&m.Name, n.labels)
				}
			}
		}
		return nil
	})
	return unknown
}

// sources are the queries of the rules and of the dashboard's source, by the file of their policy or the title of their panel.
func sources(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, path := range []string{"alerts.yaml", "alerts.cloud.yaml"} {
		var file struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
		}
		must(t, yaml.Unmarshal(read(t, observe+path), &file))
		for _, group := range file.Groups {
			for _, rule := range group.Rules {
				found[strings.ToLower(rule.Alert)+".json"] = rule.Expr
			}
		}
	}
	var page struct {
		Sections []struct {
			Panels []struct {
				Title   string
				Queries []struct{ Expr string }
			}
		}
	}
	must(t, yaml.Unmarshal(read(t, observe+"dashboard.yaml"), &page))
	for _, section := range page.Sections {
		for _, panel := range section.Panels {
			for i, query := range panel.Queries {
				found[panel.Title+" "+strconv.Itoa(i)] = query.Expr
			}
		}
	}
	return found
}

// queries returns the queries of Cloud Monitoring, by the same names.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	paths, err := filepath.Glob(observe + "monitoring/*.json")
	must(t, err)
	for _, path := range paths {
		var policy struct {
			Conditions [1]struct {
				ConditionPrometheusQueryLanguage struct{ Query string }
			}
		}
		must(t, json.Unmarshal(read(t, path), &policy))
		found[filepath.Base(path)] = policy.Conditions[0].ConditionPrometheusQueryLanguage.Query
	}
	var dashboard struct {
		MosaicLayout struct {
			Tiles []struct {
				Widget struct {
					Title   string
					XyChart struct {
						DataSets []struct {
							TimeSeriesQuery struct{ PrometheusQuery string }
						}
					}
				}
			}
		}
	}
	must(t, json.Unmarshal(read(t, observe+"dashboard.json"), &dashboard))
	for _, tile := range dashboard.MosaicLayout.Tiles {
		for i, set := range tile.Widget.XyChart.DataSets {
			found[tile.Widget.Title+" "+strconv.Itoa(i)] = set.TimeSeriesQuery.PrometheusQuery
		}
	}
	return found
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
