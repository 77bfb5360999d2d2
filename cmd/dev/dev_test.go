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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

const isDev = "DEV_TEST_IS_DEV" // in the environment: this test binary is cmd/dev

func TestMain(m *testing.M) {
	if os.Getenv(isDev) != "" {
		main()
		return
	}
	m.Run()
}

// start starts cmd/dev on a free port, waits until it runs, and returns its screen. After SIGTERM, which stop sends, it must exit with 0.
func start(t *testing.T, state string, args ...string) (screen string, stop func()) {
	t.Helper()
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
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("cmd/dev ended with %v: %s", err, &stderr)
		}
	})
	t.Cleanup(stop)
	eventually(t, "cmd/dev runs", func() bool {
		text, err := os.ReadFile(stdout.Name())
		screen = string(text)
		return err != nil || len(ended) > 0 || strings.Contains(screen, "Ctrl-C stops everything")
	})
	return screen, stop
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	pgtest.Eventually(t, 2*time.Minute, what, holds) // on a machine that is busy
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

// The whole system works, also over Kafka: what is published reaches the catalog. Kafka keeps it over a restart.
func TestDev(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"Pub/Sub": nil, "Kafka": {"--kafka"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state, err := os.MkdirTemp("", "dev-test-")
			must(t, err)
			t.Cleanup(func() { os.RemoveAll(state) })
			must(t, os.Chmod(state, 0o755)) // if we are root, PostgreSQL runs as another user
			screen, stop := start(t, state, args...)
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
			if args == nil {
				return
			}
			stop()
			screen, _ = start(t, state, args...)
			client, err := kgo.NewClient(kgo.SeedBrokers(field(t, screen, `Kafka +(\S+:\d+)`)))
			must(t, err)
			defer client.Close()
			ends, err := kadm.NewClient(client).ListEndOffsets(t.Context(), names.VideoTopic.Name)
			must(t, err)
			var records int64
			ends.Each(func(end kadm.ListedOffset) { records += end.Offset })
			if records != 2 {
				t.Errorf("after a restart Kafka has %d records, want the 2 of before", records)
			}
		})
	}
}
