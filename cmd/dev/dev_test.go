package main

import (
	"bytes"
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
)

const (
	isDev = "DEV_TEST_IS_DEV" // in the environment: this test binary is cmd/dev
	// patience is how long a step may take on a machine that is busy.
	patience = 2 * time.Minute
)

func TestMain(m *testing.M) {
	if os.Getenv(isDev) != "" {
		main()
		return
	}
	m.Run()
}

// start starts cmd/dev on a free port, waits until it runs, and returns its screen. After SIGTERM it must exit with 0.
func start(t *testing.T, args ...string) (screen string) {
	t.Helper()
	state, err := os.MkdirTemp("", "dev-test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(state) })
	if err := os.Chmod(state, 0o755); err != nil { // if we are root, PostgreSQL runs as another user
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], append(args, "--state", state)...)
	settings := regexp.MustCompile(`^(PORT|ROLES|LOG_LEVEL|DATABASE_URL|(PUBSUB|OUTBOX|CONSUMER|SERVER|TELEMETRY)_\w+)=`)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), settings.MatchString), "PORT=0", isDev+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := os.Create(filepath.Join(state, "screen"))
	must(t, err)
	defer stdout.Close()
	cmd.Stdout = stdout
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("cmd/dev ended with %v: %s", err, &stderr)
		}
	})
	eventually(t, "cmd/dev runs", func() bool {
		text, err := os.ReadFile(stdout.Name())
		screen = string(text)
		return err != nil || len(ended) > 0 || strings.Contains(screen, "Ctrl-C stops everything")
	})
	return screen
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// field returns the match of the group in a regular expression on the screen.
func field(t *testing.T, screen, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(screen)
	if found == nil {
		t.Fatalf("no %s on the screen:\n%s", pattern, screen)
	}
	return found[1]
}

// call makes a request, which must succeed.
func call(t *testing.T, method, url, body string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %s, %v", method, url, response.Status, text, err)
	}
	return string(text)
}

// The whole system works, also over Kafka: what is published reaches the catalog.
func TestDev(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"Pub/Sub": nil, "Kafka": {"--kafka"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			screen := start(t, args...)
			if shown := strings.Contains(screen, "Kafka "); shown != (args != nil) {
				t.Errorf("the screen shows Kafka: %t", shown)
			}
			api := field(t, screen, `(http://localhost:\d+)/v1`)
			var video struct{ Name string }
			must(t, json.Unmarshal([]byte(call(t, http.MethodPost, api+"/v1/videos", `{"title":"Ran"}`)), &video))
			call(t, http.MethodPost, api+"/v1/"+video.Name+":publish", "{}")
			eventually(t, "the catalog has the video", func() bool {
				return strings.Contains(call(t, http.MethodGet, api+"/v1/catalogEntries", ""), `"Ran"`)
			})
			if got := call(t, http.MethodGet, api+"/openapi.json", ""); !strings.Contains(got, `"openapi": "3.0`) {
				t.Errorf("GET /openapi.json = %.100s, want OpenAPI 3.0", got)
			}
		})
	}
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
