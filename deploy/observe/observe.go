// Package observe generates the alert policies and the dashboard of the service.
//
// alerts.yaml and alerts.cloud.yaml are rules in the format of Prometheus, and dashboard.yaml is a page of panels. From
// them, Files generates the policies and the dashboard of Cloud Monitoring. The generated files are in monitoring, and
// dashboard.json; the command in generate writes them. A test fails if they are out of date.
//
// The sources use the names of Prometheus. The queries for Cloud Monitoring use the names of OpenTelemetry, because the
// service sends its metrics there by OTLP, as deploy/run does.
package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	monitoring "google.golang.org/api/monitoring/v3"

	"example.com/videocatalog/internal/names"
)

// Sources of the rules: those for any Prometheus, and those about metrics that only Cloud Monitoring has.
const (
	alerts      = "alerts.yaml"
	cloudAlerts = "alerts.cloud.yaml"
)

// dashboard is the generated dashboard.
const dashboard = "dashboard.json"

// Files returns the generated files, by path below dir. An error names the source and the problem.
func Files(dir string) (map[string][]byte, error) {
	metrics, err := readMetrics(metricsPages(dir)...)
	if err != nil {
		return nil, err
	}
	files := make(map[string]any)
	for _, name := range []string{alerts, cloudAlerts} {
		r, err := readRules(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		for _, group := range r.Groups {
			for _, rule := range group.Rules {
				p, err := policy(group.Name, rule, metrics)
				if err != nil {
					return nil, fmt.Errorf("%s: rule %s: %w", name, rule.Alert, err)
				}
				path := "monitoring/" + strings.ToLower(rule.Alert) + ".json"
				if files[path] != nil {
					return nil, fmt.Errorf("%s: rule %s is there twice: give one another name", name, rule.Alert)
				}
				files[path] = p
			}
		}
	}
	page, err := readPage(filepath.Join(dir, "dashboard.yaml"))
	if err != nil {
		return nil, err
	}
	if files[dashboard], err = page.cloud(metrics); err != nil {
		return nil, fmt.Errorf("dashboard.yaml: %w", err)
	}

	encoded := make(map[string][]byte, len(files))
	for path, content := range files {
		if encoded[path], err = encode(content); err != nil {
			return nil, fmt.Errorf("encode %s: %w", path, err)
		}
	}
	return encoded, nil
}

// encode writes indented JSON that people can compare, without the escapes of <, > and & that the types of Google's library make.
func encode(content any) ([]byte, error) {
	text, err := json.MarshalIndent(content, "", "  ")
	return []byte(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(text)) + "\n"), err
}

// rules is a file of rules for Prometheus. It has only the fields that we use.
type rules struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func readRules(path string) (rules, error) {
	var r rules
	return r, readYAML(path, &r)
}

// readYAML reads a YAML file. Unknown fields are an error.
func readYAML(path string, v any) error {
	content, err := os.ReadFile(path) //nolint:gosec // its callers name a source of this directory
	if err != nil {
		return fmt.Errorf("read source: %w", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// severities maps our severities to the values of Cloud Monitoring.
var severities = map[string]string{"page": "CRITICAL", "ticket": "WARNING"}

// policy makes a policy of Cloud Monitoring from a rule. Cloud Monitoring cannot expand templates of Prometheus, so the
// summary must have none.
func policy(group string, r rule, m metrics) (*monitoring.AlertPolicy, error) {
	severity := severities[r.Labels["severity"]]
	if severity == "" {
		return nil, fmt.Errorf("severity %q is none: write page or ticket", r.Labels["severity"])
	}
	summary, runbook := r.Annotations["summary"], r.Annotations["runbook"]
	if summary == "" || strings.Contains(summary, "{{") {
		return nil, fmt.Errorf("summary %q: write one, and put templates into the annotation value", summary)
	}
	if want := "docs/runbooks.md#" + strings.ToLower(r.Alert); runbook != want {
		return nil, fmt.Errorf("runbook is %q: write %s", runbook, want)
	}
	var hold time.Duration
	if r.For != "" {
		var err error
		if hold, err = time.ParseDuration(r.For); err != nil || hold%(30*time.Second) != 0 {
			return nil, fmt.Errorf("for is %q: write whole half minutes, such as 5m", r.For)
		}
	}
	query, _, err := m.otlp(r.Expr)
	if err != nil {
		return nil, err
	}
	return &monitoring.AlertPolicy{
		DisplayName: r.Alert,
		Severity:    severity,
		UserLabels:  map[string]string{"service": names.Service, "severity": r.Labels["severity"]},
		Documentation: &monitoring.Documentation{
			MimeType: "text/markdown",
			Content:  summary + "\n\nWhat to do: `" + runbook + "` of the service's repository.",
		},
		Combiner: "OR",
		Conditions: []*monitoring.Condition{{
			DisplayName: r.Alert,
			ConditionPrometheusQueryLanguage: &monitoring.PrometheusQueryLanguageCondition{
				Query:              query,
				Duration:           fmt.Sprintf("%.0fs", hold.Seconds()),
				EvaluationInterval: "30s",
				RuleGroup:          group,
				AlertRule:          r.Alert,
				// This allows a policy before the service has sent any metric.
				DisableMetricValidation: true,
			},
		}},
		AlertStrategy: &monitoring.AlertStrategy{AutoClose: "1800s"},
		Enabled:       true,
	}, nil
}
