package service

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// With --observe, cmd/dev starts a Prometheus, which scrapes the service and has the rules loaded.
func TestObserve(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Log("prometheus is not installed, so nothing was observed: apt-get install prometheus")
		return
	}
	cmd, screen := observed(t, openFolder(t), os.Getenv("PATH"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var address []string
	for address == nil {
		address = regexp.MustCompile(`alerts +(http://\S+)/alerts`).FindStringSubmatch(read(t, screen))
		select {
		case err := <-ended:
			t.Fatalf("cmd/dev ended: %v\n%s", err, read(t, screen))
		case <-time.After(50 * time.Millisecond):
		}
	}
	await := func(path, text string) {
		t.Helper()
		for got, deadline := "", time.Now().Add(time.Minute); !strings.Contains(got, text); time.Sleep(100 * time.Millisecond) {
			if response, err := http.Get(address[1] + path); err == nil {
				body, _ := io.ReadAll(response.Body) // too little is read again
				_ = response.Body.Close()
				got = string(body)
			}
			if time.Now().After(deadline) {
				t.Fatalf("GET %s = %s, want %s in it", path, got, text)
			}
		}
	}
	await("/api/v1/query?query=outbox_backlog_age_seconds", `"value"`)
	await("/api/v1/rules", `"OutboxStalled"`)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, read(t, screen))
	}
}

// If Prometheus ends by itself, cmd/dev stops everything, and its error has the output of Prometheus.
func TestObserveTellsWhyPrometheusEnds(t *testing.T) {
	t.Parallel()
	dir := openFolder(t)
	if err := os.WriteFile(filepath.Join(dir, "prometheus"), []byte("#!/bin/sh\necho unknown flag\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd, screen := observed(t, filepath.Join(dir, "state"), dir+":"+os.Getenv("PATH"))
	err := cmd.Run()
	for _, want := range []string{"Prometheus ended by itself (exit status 3)", "prometheus.log", "unknown flag", "Stopped.\n"} {
		if got := read(t, screen); err == nil || !strings.Contains(got, want) {
			t.Errorf("cmd/dev = %v, %s, want an error with: %s", err, got, want)
		}
	}
}

// observed returns cmd/dev with --observe, and the file with its output.
func observed(t *testing.T, state, path string) (cmd *exec.Cmd, screen string) {
	t.Helper()
	dir := openFolder(t)
	program := filepath.Join(dir, "dev")
	if err := build(program, "cmd/dev"); err != nil {
		t.Fatal(err)
	}
	output, err := os.Create(filepath.Join(dir, "screen"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = output.Close() })
	cmd = exec.CommandContext(t.Context(), program, "--state", state, "--observe")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, output, output
	cmd.Env = []string{"PATH=" + path, "HOME=" + os.Getenv("HOME"), "PORT=0", "NO_COLOR=1"}
	return cmd, output.Name()
}

// openFolder returns a folder that the user who runs PostgreSQL may enter, also when the test runs as root.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "observe-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
