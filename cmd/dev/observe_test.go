package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"example.com/videocatalog/internal/deep"
)

// With isGrafana in its environment this test binary takes the place of Grafana.
const isGrafana = "DEV_TEST_IS_GRAFANA"

// grafana reads what Grafana is started with, as Grafana would, and returns with it at its health check.
func grafana(args []string, getenv func(string) string) error {
	if len(args) != 3 || args[0] != "server" || args[1] != "--homepath" {
		return fmt.Errorf("arguments = %q, want server --homepath DIR", args)
	}
	if _, err := os.Stat(filepath.Join(args[2], "conf", "defaults.ini")); err != nil {
		return err
	}
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	var boards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	provisioning := getenv("GF_PATHS_PROVISIONING")
	for path, into := range map[string]any{"datasources/prometheus.yaml": &sources, "dashboards/service.yaml": &boards} {
		content, err := os.ReadFile(filepath.Join(provisioning, path))
		if err := errors.Join(err, yaml.Unmarshal(content, into)); err != nil {
			return err
		}
	}
	found, err := filepath.Glob(boards.Providers[0].Options.Path + "/*.json")
	if err != nil || len(found) != 1 {
		return fmt.Errorf("dashboards in %s: %q, %w, want one", boards.Providers[0].Options.Path, found, err)
	}
	var board struct{ UID string }
	content, err := os.ReadFile(found[0])
	if err := errors.Join(err, json.Unmarshal(content, &board)); err != nil {
		return err
	}
	http.HandleFunc("/api/health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/d/"+board.UID, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, sources.Datasources[0].Type, " ", sources.Datasources[0].URL)
	})
	go func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		<-signals
		os.Exit(0)
	}()
	return http.ListenAndServe(net.JoinHostPort(getenv("GF_SERVER_HTTP_ADDR"), getenv("GF_SERVER_HTTP_PORT")), nil)
}

// Prometheus scrapes the server with the rules loaded, the page of the dashboard is there, Grafana finds both, and nothing
// is left running.
func TestObserve(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Log("prometheus is not installed, so nothing was observed: apt-get install prometheus")
		return
	}
	home := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", isGrafana, program)
	if err := errors.Join(os.Mkdir(filepath.Join(home, "bin"), 0o755), os.Mkdir(filepath.Join(home, "conf"), 0o755),
		os.WriteFile(filepath.Join(home, "bin", "grafana"), []byte(script), 0o755),
		os.WriteFile(filepath.Join(home, "conf", "defaults.ini"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s := start(t, []string{"PATH=" + filepath.Join(home, "bin") + ":" + os.Getenv("PATH")}, "--state", stateDir(t), "--observe")
	s.await(t, "Ctrl-C stops everything")
	prometheus := s.field(t, `dashboard +(http://\S+)/consoles/`)

	eventually(t, "the server is scraped", func() bool {
		return strings.Contains(get(t, prometheus+"/api/v1/query?query=outbox_backlog_age_seconds"), `"value"`)
	})
	if got := get(t, prometheus+"/api/v1/rules"); !strings.Contains(got, `"OutboxStalled"`) {
		t.Errorf("rules of Prometheus = %s, want OutboxStalled among them", got)
	}
	page := get(t, prometheus+"/consoles/service.html")
	if !strings.Contains(page, "max(outbox_backlog)") || !strings.HasSuffix(strings.TrimSpace(page), "</script>") {
		t.Errorf("page of the dashboard = %s, want all of it, with its queries", page)
	}
	if got, want := get(t, s.field(t, `Grafana +(http://\S+/d/\S+)`)), "prometheus "+prometheus; got != want {
		t.Errorf("Grafana has the data source %q, want %q", got, want)
	}

	family := s.descendants(t)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.end(t); code != 0 {
		t.Errorf("exit code after SIGTERM: %d, want 0: %s", code, &s.stderr)
	}
	wantGone(t, family)
}

// A Prometheus that cannot run is told with what it said, and everything is stopped.
func TestObserveTellsWhyPrometheusEnds(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	dir := stateDir(t)
	if err := os.WriteFile(filepath.Join(dir, "prometheus"), []byte("#!/bin/sh\necho unknown flag\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := start(t, []string{"PATH=" + dir + ":" + os.Getenv("PATH")}, "--state", filepath.Join(dir, "state"), "--observe")
	if code := s.end(t); code != 1 {
		t.Errorf("exit code = %d, want 1", code)
	}
	for _, want := range []string{"Prometheus ended by itself (exit status 3)", "prometheus.log", "unknown flag"} {
		if !strings.Contains(s.stderr.String(), want) {
			t.Errorf("stderr = %q, want: %s", &s.stderr, want)
		}
	}
	if !strings.HasSuffix(s.text(), "Stopped.\n") {
		t.Errorf("the screen does not end with Stopped:\n%s", s.text())
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
