package entity

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/videocatalog/lab/internal/clone"
)

// startStack starts cmd/dev of the clone, with the database that an earlier stack left. It
// returns the addresses of the API and of the console. stop stops the stack.
func startStack(t *testing.T, dir string) (api, console string, stop func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "dev")
	clone.Run(t, dir, "go", "build", "-o", program, "./cmd/dev")
	screen, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	must(t, err)
	t.Cleanup(func() { _ = screen.Close() })
	cmd := exec.Command(program, "--state", filepath.Join(dir, ".local"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, screen, screen
	settings := regexp.MustCompile(`^(PORT|ROLES|DATABASE_URL|(PUBSUB|OUTBOX|CONSUMER|SERVER|TELEMETRY)_\w+)=`)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), settings.MatchString), "PORT=0", "NO_COLOR=1")
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the test reads the screen
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	}
	t.Cleanup(stop)
	addresses := regexp.MustCompile(`(?s)(http://localhost:\d+/v1),.*console +(http://\S+/)\s`)
	for {
		text, err := os.ReadFile(screen.Name())
		must(t, err)
		if found := addresses.FindSubmatch(text); found != nil {
			return string(found[1]) + "/", string(found[2]), stop
		}
		select {
		case <-ended:
			t.Fatalf("cmd/dev ended:\n%s", text)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// await calls difference until it returns an empty string.
func await(t *testing.T, difference func() string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		diff := difference()
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute (-want +got):\n%s", diff)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// call makes a request that must have a status.
func call(t *testing.T, want int, method, url, body string) map[string]any {
	t.Helper()
	code, got := request(t, method, url, body)
	if code != want {
		t.Fatalf("%s %s: status %d, want %d: %v", method, url, code, want, got)
	}
	return got
}

func request(t *testing.T, method, url, body string) (code int, got map[string]any) {
	t.Helper()
	response, text := send(t, method, url, body)
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%s %s: %v: %s", method, url, err, text)
	}
	return response.StatusCode, got
}

// send makes a request, and follows redirects.
func send(t *testing.T, method, url, body string) (response *http.Response, text []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	if response, err = http.DefaultClient.Do(request); err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return response, text
}
