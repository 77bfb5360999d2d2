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

	"example.com/videocatalog/internal/pg/pgtest"
)

// With --observe, cmd/dev starts a Prometheus, which scrapes the service and has the rules loaded.
func TestObserve(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Log("prometheus is not installed, so nothing was observed: apt-get install prometheus")
		return
	}
	dir := openFolder(t)
	program, screen := filepath.Join(dir, "dev"), filepath.Join(dir, "screen")
	must(t, build(program, "cmd/dev"))
	output, err := os.Create(screen)
	must(t, err)
	t.Cleanup(func() { _ = output.Close() })
	cmd := exec.CommandContext(t.Context(), program, "--state", filepath.Join(dir, "state"), "--observe")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, output, output
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PORT=0", "NO_COLOR=1"}
	must(t, cmd.Start())
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
		pgtest.Eventually(t, time.Minute, "GET "+path+" has "+text, func() bool {
			response, err := http.Get(address[1] + path)
			if err != nil {
				return false
			}
			defer response.Body.Close()
			body, _ := io.ReadAll(response.Body) // too little is read again
			return strings.Contains(string(body), text)
		})
	}
	await("/api/v1/query?query=outbox_backlog_age_seconds", `"value"`)
	await("/api/v1/rules", `"OutboxStalled"`)
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, read(t, screen))
	}
}

// openFolder returns a folder that the user who runs PostgreSQL may enter, also when the test runs as root.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "observe-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}
