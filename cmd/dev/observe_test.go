package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/videocatalog/internal/deep"
)

// Prometheus scrapes the server with the rules loaded, and nothing is left running.
func TestObserve(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Log("prometheus is not installed, so nothing was observed: apt-get install prometheus")
		return
	}
	s := start(t, nil, "--state", stateDir(t), "--observe")
	s.await(t, "Ctrl-C stops everything")
	prometheus := s.field(t, `alerts +(http://\S+)/alerts`)

	eventually(t, "the server is scraped", func() bool {
		return strings.Contains(get(t, prometheus+"/api/v1/query?query=outbox_backlog_age_seconds"), `"value"`)
	})
	if got := get(t, prometheus+"/api/v1/rules"); !strings.Contains(got, `"OutboxStalled"`) {
		t.Errorf("rules of Prometheus = %s, want OutboxStalled among them", got)
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
