package main

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"example.com/videocatalog/internal/deep"
)

// Prometheus scrapes the server with the rules loaded.
func TestObserve(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Log("prometheus is not installed, so nothing was observed: apt-get install prometheus")
		return
	}
	prometheus := field(t, start(t, "--observe"), `alerts +(http://\S+)/alerts`)
	eventually(t, "the server is scraped", func() bool {
		return strings.Contains(call(t, http.MethodGet, prometheus+"/api/v1/query?query=outbox_backlog_age_seconds", ""), `"value"`)
	})
	if got := call(t, http.MethodGet, prometheus+"/api/v1/rules", ""); !strings.Contains(got, `"OutboxStalled"`) {
		t.Errorf("rules of Prometheus = %s, want OutboxStalled among them", got)
	}
}

// Without Prometheus nothing starts, and the error says how to install it.
func TestObserveNeedsPrometheus(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := observe().Check(); err == nil || !strings.Contains(err.Error(), "apt-get install prometheus") {
		t.Errorf("Check() = %v, want the remedy", err)
	}
}
