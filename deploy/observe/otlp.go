package observe

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// metricsPage lists the metrics of the service, below the folder of the sources. cmd/server makes it from the code.
const metricsPage = "../../docs/metrics.md"

// metrics are the series of the service, by their names in Prometheus. With them otlp says a query of Prometheus as Cloud
// Monitoring wants it for what is sent there by OTLP: names and labels keep their dots and are quoted, as PromQL has it for
// names in UTF-8, and there is neither a unit nor _total at their end. The suffixes of a histogram's parts are the same.
// https://docs.cloud.google.com/stackdriver/docs/otlp-metrics/overview
type metrics map[string]series

type series struct {
	name   string            // as it is sent, with the suffix of a histogram's part
	labels map[string]string // as they are sent, by their names in Prometheus
}

// kept are labels that no attribute of a metric makes: they are called the same everywhere.
var kept = map[string]string{
	"instance": "instance", "job": "job", "le": "le", "otel_scope_name": "otel_scope_name", "otel_scope_version": "otel_scope_version",
}

var (
	metricRow = regexp.MustCompile("^\\| `([^`]+)` \\| `([^`]+)` \\| (\\w+) \\|(.*)")
	// byAttribute is how the page names attributes, of a section or of a metric: "by error.type: missing, oversized".
	byAttribute = regexp.MustCompile(`\b[Bb]y ([a-z_]+(?:\.[a-z_]+)*)(?: and ([a-z_]+(?:\.[a-z_]+)*))?[:;,.]`)
)

func readMetrics(path string) (metrics, error) {
	content, err := os.ReadFile(path) //nolint:gosec // its callers name the page of this module
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	all := metrics{}
	section := maps.Clone(kept) // the labels of all its metrics
	for line := range strings.Lines(string(content)) {
		row := metricRow.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "## "):
			section = maps.Clone(kept)
		case row == nil:
			addAttributes(section, line)
		default:
			labels := maps.Clone(section)
			addAttributes(labels, row[4])
			parts := []string{""}
			if row[3] == "histogram" {
				parts = []string{"_bucket", "_sum", "_count"}
			}
			for _, part := range parts {
				all[row[2]+part] = series{row[1] + part, labels}
			}
		}
	}
	return all, nil
}

func addAttributes(labels map[string]string, text string) {
	for _, found := range byAttribute.FindAllStringSubmatch(text, -1) {
		for _, name := range found[1:] {
			if name != "" {
				labels[strings.ReplaceAll(name, ".", "_")] = name
			}
		}
	}
}

var (
	// part is what a query is made of: what has no names; a list of labels; a name, with its matchers. Strings are in matchers
	// only, hence no function that takes the name of a label as a text.
	part = regexp.MustCompile(`^(?:(\s+|[0-9][0-9a-zA-Z.]*|\[[0-9a-z:]+\]|[-+*/%^(),=!<>]+)` +
		`|((?:by|without|on|ignoring|group_left|group_right)\s*\()([^()]*)\)` +
		`|([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\s*(\{)((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?)`)
	label   = regexp.MustCompile(`^(\s*)([a-zA-Z_][a-zA-Z0-9_]*)(\s*(?:,|$))`)
	matcher = regexp.MustCompile(`^(\s*)([a-zA-Z_][a-zA-Z0-9_]*)(\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"\s*(?:,|$))`)
)

// words are those of the language, and its functions, that our queries use.
var words = []string{
	"absent", "and", "count", "histogram_quantile", "increase", "max", "max_over_time", "min", "offset", "or", "rate", "sum", "unless",
}

// ofPubsub is how the metrics begin that Cloud Monitoring has from Pub/Sub. They and their labels are not ours.
const ofPubsub = "pubsub_googleapis_com:"

// otlp answers a query of Prometheus as a query of what is sent by OTLP, and how its labels are called there, by their names
// in Prometheus. It refuses what it does not understand, and names that the service does not send.
func (m metrics) otlp(query string) (string, map[string]string, error) {
	var parts [][]string
	labels := map[string]string{}
	for rest := query; rest != ""; {
		p := part.FindStringSubmatch(rest)
		if p == nil {
			return "", nil, fmt.Errorf("no way to say this by OTLP, teach otlp.go: %s", rest)
		}
		parts = append(parts, p)
		maps.Copy(labels, m[p[4]].labels)
		rest = rest[len(p[0]):]
	}
	var out strings.Builder
	for _, p := range parts {
		name, hasMatchers := p[4], p[5] != ""
		switch s, ours := m[name]; {
		case p[1] != "", strings.HasPrefix(name, ofPubsub), slices.Contains(words, name) && !hasMatchers:
			out.WriteString(p[0])
		case p[2] != "":
			list, err := rename(p[3], label, labels)
			if err != nil {
				return "", nil, fmt.Errorf("%s: %w", p[0], err)
			}
			out.WriteString(p[2] + list + ")")
		case !ours:
			return "", nil, fmt.Errorf("%s is no metric of docs/metrics.md that is sent by OTLP, and no word of otlp.go", name)
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

// rename writes a list anew whose items have a label each.
func rename(list string, item *regexp.Regexp, labels map[string]string) (string, error) {
	var out strings.Builder
	for rest := list; strings.TrimSpace(rest) != ""; {
		found := item.FindStringSubmatch(rest)
		if found == nil {
			return "", fmt.Errorf("no way to say this by OTLP, teach otlp.go: %s", rest)
		}
		name := labels[found[2]]
		if name == "" {
			return "", fmt.Errorf("%s is no attribute in docs/metrics.md of what is asked", found[2])
		}
		if strings.Contains(name, ".") {
			name = `"` + name + `"`
		}
		out.WriteString(found[1] + name + found[3])
		rest = rest[len(found[0]):]
	}
	return out.String(), nil
}
