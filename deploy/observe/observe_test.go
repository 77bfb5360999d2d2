package observe

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

// root is the directory of the module.
const root = "../.."

// The generated files are up to date, and there are no other files.
func TestFilesAreUpToDate(t *testing.T) {
	want, err := Files(".")
	must(t, err)
	var found []string
	for _, pattern := range []string{"monitoring/*", "*.json"} {
		paths, err := filepath.Glob(pattern)
		must(t, err)
		found = append(found, paths...)
	}
	const remedy = "run make generate"
	slices.Sort(found)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), found); diff != "" {
		t.Errorf("files (-want +got):\n%s%s", diff, remedy)
	}
	for path, content := range want {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s is stale (%v): %s", path, err, remedy)
		}
	}
}

// metricRows returns the rows of the pages with metrics: name, name in Prometheus, kind.
func metricRows(t *testing.T) [][]string {
	t.Helper()
	var rows [][]string
	for _, page := range metricsPages(".") {
		for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\| (\\w+) \\|").FindAllStringSubmatch(read(t, page), -1) {
			rows = append(rows, m[1:])
		}
	}
	return rows
}

// documentedMetrics returns the series and the metrics of the pages with metrics, by name. In Prometheus, a histogram
// itself is not a series. The metrics have the names of OpenTelemetry, too.
func documentedMetrics(t *testing.T) (series, metrics map[string]bool) {
	t.Helper()
	series, metrics = map[string]bool{}, map[string]bool{}
	for _, row := range metricRows(t) {
		metrics[row[0]], metrics[row[1]] = true, true
		if row[2] != "histogram" {
			series[row[1]] = true
			continue
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			series[row[1]+suffix] = true
		}
	}
	return series, metrics
}

// The methods that rules exclude are methods of the service.
func TestMethodsExist(t *testing.T) {
	contract := read(t, root+"/api/proto/catalog/v1/catalog_service.proto")
	found := 0
	for _, r := range allRules(t) {
		for _, m := range regexp.MustCompile(`catalog\.v1\.CatalogService/(?:(\w+)|\((\w+)\|(\w+)\))"`).FindAllStringSubmatch(r.Expr, -1) {
			for _, method := range m[1:] {
				if method == "" {
					continue
				}
				found++
				if !strings.Contains(contract, "  rpc "+method+"(") {
					t.Errorf("rule %s: CatalogService has no method %s", r.Alert, method)
				}
			}
		}
	}
	if found < 4 {
		t.Errorf("%d methods found in the rules, want those of both error budgets: does the expression still fit?", found)
	}
}

// The metrics that runbooks name exist. Tables, roles and pools have similar names.
func TestRunbookMetricsExist(t *testing.T) {
	series, metrics := documentedMetrics(t)
	others := map[string]bool{"outbox_pending": true, "outbox_deferred": true, "video_catalog_read_rw": true, "queries.calls": true, "commands.calls": true}
	const name = `((?:outbox|consumer|timer|catalog|rpc|server|db|pgxpool|go|process)[_.][a-z_.]*[a-z])`
	found := 0
	for _, path := range []string{"/docs/runbooks.md", "/docs/operations.md", "/docs/deploy.md"} {
		text := read(t, root+path)
		used := regexp.MustCompile("`"+name+"(?:\\{[^`]*\\})?`").FindAllStringSubmatch(text, -1)
		used = append(used, regexp.MustCompile(`\bgrep `+name+`\b`).FindAllStringSubmatch(text, -1)...)
		used = append(used, regexp.MustCompile(`\{"`+name+`"`).FindAllStringSubmatch(text, -1)...)
		for _, m := range regexp.MustCompile(`\bgrep -E '\^([a-z_]+)\(([a-z_|]+)\)'`).FindAllStringSubmatch(text, -1) {
			for end := range strings.SplitSeq(m[2], "|") {
				used = append(used, []string{m[0], m[1] + end})
			}
		}
		for _, m := range used {
			if others[m[1]] {
				continue
			}
			found++
			if !series[m[1]] && !metrics[m[1]] {
				t.Errorf("%s: %s is not in metrics.md", path[1:], m[1])
			}
		}
	}
	if found < 12 {
		t.Errorf("%d metrics found, want at least 12: do the expressions still fit?", found)
	}
}

// Each alert has a section in the runbooks, with a command in it. No section is about an alert that does not exist.
func TestEveryAlertHasItsRunbook(t *testing.T) {
	var want, got []string
	for _, r := range allRules(t) {
		want = append(want, r.Alert)
	}
	for _, s := range strings.Split(read(t, root+"/docs/runbooks.md"), "\n## ")[1:] {
		title, text, _ := strings.Cut(s, "\n")
		got = append(got, title)
		if !strings.Contains(text, "```sh\n") {
			t.Errorf("docs/runbooks.md: %s has no command", title)
		}
		if !strings.HasPrefix(strings.TrimSpace(text), "*Page.*") && !strings.HasPrefix(strings.TrimSpace(text), "*Ticket.*") {
			t.Errorf("docs/runbooks.md: %s does not begin with its severity", title)
			continue
		}
		for _, r := range allRules(t) {
			if severity := r.Labels["severity"]; r.Alert == title && !strings.HasPrefix(strings.ToLower(strings.TrimSpace(text)), "*"+severity+".*") {
				t.Errorf("docs/runbooks.md: %s is a %s by its rule", title, severity)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	pgtest.Same(t, "sections of docs/runbooks.md", want, got)
}

// The statements of the runbooks run on the present schema, each as the user that it is for: a person with the role
// support_ro, a user with only pg_read_all_stats, or the owner of the schemas.
func TestRunbookStatementsRun(t *testing.T) {
	statement := regexp.MustCompile(`(?m)^psql (?:-U (migrator|administrator) )?-c (?:'([^'\n]+)'|"([^"\n]+)")$`)
	text := read(t, root+"/docs/runbooks.md")
	found := statement.FindAllStringSubmatch(text, -1)
	if all := strings.Count(text, "\npsql "); len(found) != all {
		t.Errorf("%d of %d lines with psql are understood, want all", len(found), all)
	}
	if len(found) < 10 {
		t.Fatalf("%d statements found, want at least 10: does the expression still fit?", len(found))
	}
	pool := pgtest.Pool(t, 2)
	conn, err := pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	exec := func(sql string) {
		pgtest.Execute(t, conn, sql)
	}
	roles := map[string]string{"": "SET ROLE support_ro", "administrator": "SET ROLE pg_read_all_stats", "migrator": "RESET ROLE"}
	for _, m := range found {
		sql := m[2] + m[3]
		exec(roles[m[1]])
		rows, err := conn.Query(t.Context(), sql)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		if err != nil {
			t.Errorf("%s, after %s: %v", sql, roles[m[1]], err)
		}
		if m[1] == "" && strings.Contains(sql, "pg_stat_activity") {
			t.Errorf("%s: shows nothing of others without pg_read_all_stats: write -U administrator", sql)
		}
	}

	// The check of pg_stat_activity above depends on this.
	for role, want := range map[string]bool{"": false, "administrator": true} {
		exec(roles[role])
		var shown bool
		err := conn.QueryRow(t.Context(), `SELECT bool_or(query_start IS NOT NULL) FROM pg_stat_activity WHERE usename <> current_user`).Scan(&shown)
		if err != nil || shown != want {
			t.Errorf("after %s others' sessions are shown: %v, %v, want %v", roles[role], shown, err, want)
		}
	}
	exec("RESET ROLE")
}

// The commands of the runbooks are listed by server help, with the same number of arguments. With --all or --filter they
// have none. The flags --reason and --why are ignored.
func TestRunbookCommandsExist(t *testing.T) {
	upper := regexp.MustCompile(`[A-Z][A-Z_:]+`)
	known := map[string]bool{} // for example "projection repair # #", and "projection repair --all"
	help := read(t, root+"/internal/app/commands.go")
	options, _ := filepath.Glob(root + "/options/*/*.go") // the pattern is right
	for _, path := range options {
		help += read(t, path)
	}
	for _, m := range regexp.MustCompile(`(?m)(?:^|`+"`"+`)  server (\S+(?: \S+)*)  `).FindAllStringSubmatch(help, -1) {
		command := upper.ReplaceAllString(strings.NewReplacer(" [FLAGS]", "", " [WHICH]", "", "...", "").Replace(m[1]), "#")
		known[command] = true
		known[strings.TrimRight(command, " #")+" --all"] = true
	}
	flags := regexp.MustCompile(` --(reason|why) '[^']*'`)
	several := regexp.MustCompile(` --(all|filter \S+)`)
	used := regexp.MustCompile("(?m)^server ([^#\n]+)|`server ([a-z][^`]*)`").FindAllStringSubmatch(read(t, root+"/docs/runbooks.md"), -1)
	if len(known) < 8 || len(used) < 8 {
		t.Fatalf("%d commands in the help, %d in docs/runbooks.md, want at least 8 each: do the expressions still fit?", len(known), len(used))
	}
	for _, m := range used {
		command := strings.ReplaceAll(strings.TrimSpace(m[1]+m[2]), " video ID", " TYPE ID")
		command = several.ReplaceAllString(flags.ReplaceAllString(command, ""), " --all")
		if !known[upper.ReplaceAllString(command, "#")] {
			t.Errorf("docs/runbooks.md: server help does not list server %s", command)
		}
	}
}

// The log lines that runbooks search for are written by the service.
func TestRunbookLogLinesExist(t *testing.T) {
	found := regexp.MustCompile("(?s)\\blog\\b[^`.]*? has\\s`([^`]+)`|jsonPayload.message:\"([^\"]+)\"").FindAllStringSubmatch(read(t, root+"/docs/runbooks.md"), -1)
	if len(found) < 5 {
		t.Fatalf("%d log lines found, want at least 5: does the expression still fit?", len(found))
	}
	var source strings.Builder
	for _, dir := range []string{"internal/app", "internal/outbox", "internal/consumer", "internal/telemetry", "options/reactions"} {
		paths, err := filepath.Glob(root + "/" + dir + "/*.go")
		must(t, err)
		for _, path := range paths {
			if !strings.HasSuffix(path, "_test.go") {
				source.WriteString(read(t, path))
			}
		}
	}
	for _, m := range found {
		if line := m[1] + m[2]; !strings.Contains(source.String(), `"`+line) {
			t.Errorf("docs/runbooks.md: nothing logs %q", line)
		}
	}
}

// Each rule has a test in which it fires, and is about this service only. lab/service runs the tests.
func TestEveryAlertHasATest(t *testing.T) {
	series := regexp.MustCompile(`\b(outbox|consumer|projection|timer|database_replaced|pgxpool|rpc_server|server_calls)\w*([^!\w]|$)`)
	tests := read(t, "alerts_test.yaml")
	for _, r := range allRules(t) {
		if !strings.Contains(tests, `alertname="`+r.Alert+`"`) {
			t.Errorf("alerts_test.yaml: %s has no test in which it fires", r.Alert)
		}
		if bare := series.FindString(strings.ReplaceAll(r.Expr, `{job="`+names.Service+`"`, "!")); bare != "" {
			t.Errorf("%s: %s is of every service, want the label job", r.Alert, bare)
		}
	}
}

// A rule that Cloud Monitoring cannot express, or whose runbook is wrong, is refused. The error names the wrong part.
func TestPolicyRefuses(t *testing.T) {
	known := metrics{"x": series{name: "x"}}
	good := func() rule {
		return rule{
			Alert: "Parked", Expr: "x > 0", For: "5m", Labels: map[string]string{"severity": "page"},
			Annotations: map[string]string{"summary": "Parked.", "runbook": "docs/runbooks.md#parked"},
		}
	}
	if p, err := policy("outbox", good(), known); err != nil || p.Conditions[0].ConditionPrometheusQueryLanguage.Duration != "300s" {
		t.Fatalf("policy of a good rule = %+v, %v, want 300s", p, err)
	}
	for name, spoil := range map[string]func(*rule){
		"severity": func(r *rule) { r.Labels["severity"] = "loud" },
		"summary":  func(r *rule) { r.Annotations["summary"] = "{{ $value }} parked" },
		"runbook":  func(r *rule) { r.Annotations["runbook"] = "docs/runbooks.md#other" },
		"for":      func(r *rule) { r.For = "45s" },
		"y_total":  func(r *rule) { r.Expr = "y_total > 0" },
	} {
		r := good()
		spoil(&r)
		if _, err := policy("outbox", r, known); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("policy with a bad %s: %v, want an error that names it", name, err)
		}
	}
}

func allRules(t *testing.T) []rule {
	t.Helper()
	var all []rule
	for _, name := range []string{alerts, cloudAlerts} {
		r, err := readRules(name)
		must(t, err)
		for _, g := range r.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return string(content)
}
