package observe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// metricsPage is the list of metrics of the service, relative to the directory of the sources. A test writes it.
// optionPages have the metrics of the options.
const (
	metricsPage = "metrics.md"
	optionPages = "../../options/*/README.md"
)

// metricsPages returns the pages with metrics, for a directory of sources.
func metricsPages(dir string) []string {
	pages, _ := filepath.Glob(filepath.Join(dir, optionPages)) // the pattern is right
	return append(pages, filepath.Join(dir, metricsPage))
}

// metrics are the series of the service, by their names in Prometheus. Its method otlp converts a query of Prometheus
// to one of Cloud Monitoring for metrics that were sent by OTLP. There, names and labels keep their dots and are
// quoted, as PromQL does for UTF-8 names. Names have no unit and no _total at the end, but keep the suffixes of
// histograms. https://docs.cloud.google.com/stackdriver/docs/otlp-metrics/overview
type metrics map[string]series

type series struct {
	name   string            // as sent, with the suffix of a histogram's part
	labels map[string]string // labels as sent, by their names in Prometheus
}

// kept are labels that no attribute produces, and that have the same name everywhere. Others differ: instance is an
// address in Prometheus, and service.instance.id in Cloud Monitoring. The labels of the scope (otel_scope_name and
// others) exist only in Cloud Monitoring, because internal/telemetry omits them for Prometheus.
var kept = map[string]string{"job": "job", "le": "le"}

var metricRow = regexp.MustCompile("^\\| `([^`]+)` \\| `([^`]+)` \\| (\\w+) \\|[^|]*\\|([^|]*)\\|")

func readMetrics(paths ...string) (metrics, error) {
	all := metrics{}
	for _, path := range paths {
		if err := all.read(path); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// read adds the metrics of a page.
func (m metrics) read(path string) error {
	content, err := os.ReadFile(path) //nolint:gosec // its callers name a page of this module
	if err != nil {
		return fmt.Errorf("read metrics: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		row := metricRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		name, prometheus, kind, attributes := row[1], row[2], row[3], row[4]
		labels := maps.Clone(kept)
		for attribute := range strings.FieldsSeq(strings.ReplaceAll(attributes, ",", " ")) {
			label := strings.ReplaceAll(attribute, ".", "_")
			if labels[label] != "" {
				return fmt.Errorf("%s: attributes %s and %s of %s are one label of Prometheus", path, labels[label], attribute, name)
			}
			labels[label] = attribute
		}
		parts := []string{""}
		if kind == "histogram" {
			parts = []string{"_bucket", "_sum", "_count"}
		}
		for _, part := range parts {
			if other, twice := m[prometheus+part]; twice {
				return fmt.Errorf("%s: %s and %s are both called %s in Prometheus", path, other.name, name+part, prometheus+part)
			}
			m[prometheus+part] = series{name + part, labels}
		}
	}
	return nil
}

var (
	// part matches one part of a query: text without names, a list of labels, or a name with its matchers. Strings are
	// allowed only in matchers, so functions with a label name as a string argument are not supported.
	part = regexp.MustCompile(`^(?:(\s+|[0-9][0-9a-zA-Z.]*|\[[0-9a-z:]+\]|[-+*/%^(),=!<>]+)` +
		`|((?:by|without|on|ignoring|group_left|group_right)\s*\()([^()]*)\)` +
		`|([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\s*(\{)((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?)`)
	label   = regexp.MustCompile(`^(\s*)([a-zA-Z_][a-zA-Z0-9_]*)(\s*(?:,|$))`)
	matcher = regexp.MustCompile(`^(\s*)([a-zA-Z_][a-zA-Z0-9_]*)(\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"\s*(?:,|$))`)
)

// words are the keywords and functions of PromQL that our queries use.
var words = []string{
	"absent", "and", "count", "histogram_quantile", "increase", "max", "max_over_time", "min", "min_over_time", "offset", "or", "rate", "sum", "unless",
}

// ofGoogle is part of the names of metrics that Pub/Sub, Cloud Run and Cloud SQL send. A query of them stays as it is.
const ofGoogle = "_googleapis_com:"

// otlp converts a query of Prometheus to a query of the metrics sent by OTLP. It also returns the sent names of the
// labels, by their names in Prometheus. It refuses unknown syntax and unknown names. It also refuses metrics with a
// common label in Prometheus that is sent under different names: the query would aggregate or match by both.
func (m metrics) otlp(query string) (string, map[string]string, error) {
	if strings.Contains(query, ofGoogle) {
		return query, nil, nil
	}
	var parts [][]string
	labels := map[string]string{}
	for rest := query; rest != ""; {
		p := part.FindStringSubmatch(rest)
		if p == nil {
			return "", nil, fmt.Errorf("no way to say this by OTLP, teach otlp.go: %s", rest)
		}
		parts = append(parts, p)
		for label, name := range m[p[4]].labels {
			if other := labels[label]; other != "" && other != name {
				return "", nil, fmt.Errorf("%s: its label %s is sent as %s, and as %s of another metric", p[4], label, name, other)
			}
			labels[label] = name
		}
		rest = rest[len(p[0]):]
	}
	var out strings.Builder
	for _, p := range parts {
		name, hasMatchers := p[4], p[5] != ""
		switch s, ours := m[name]; {
		case p[1] != "", slices.Contains(words, name) && !hasMatchers:
			out.WriteString(p[0])
		case p[2] != "":
			list, err := rename(p[3], label, labels)
			if err != nil {
				return "", nil, fmt.Errorf("%s: %w", p[0], err)
			}
			out.WriteString(p[2] + list + ")")
		case !ours:
			return "", nil, fmt.Errorf("%s is no metric of metrics.md that is sent by OTLP, and no word of otlp.go", name)
		default:
			matchers, err := rename(p[6], matcher, s.labels)
			if err != nil {
				return "", nil, fmt.Errorf("%s: %w", name, err)
			}
			if matchers = strings.TrimSpace(matchers); matchers != "" {
				matchers = ", " + matchers
			}
			fmt.Fprintf(&out, "{%q%s}", s.name, matchers)
		}
	}
	return out.String(), labels, nil
}

// rename replaces the label in each item of a list by the name under which it is sent.
func rename(list string, item *regexp.Regexp, labels map[string]string) (string, error) {
	var out strings.Builder
	for rest := list; strings.TrimSpace(rest) != ""; {
		found := item.FindStringSubmatch(rest)
		if found == nil {
			return "", fmt.Errorf("no way to say this by OTLP, teach otlp.go: %s", rest)
		}
		name := labels[found[2]]
		if name == "" {
			return "", fmt.Errorf("%s is not an attribute of this metric in metrics.md", found[2])
		}
		if strings.Contains(name, ".") {
			name = `"` + name + `"`
		}
		out.WriteString(found[1] + name + found[3])
		rest = rest[len(found[0]):]
	}
	return out.String(), nil
}
