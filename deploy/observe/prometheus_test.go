package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"go.yaml.in/yaml/v3"

	"example.com/videocatalog/internal/localbroker"
	"example.com/videocatalog/internal/store/storetest"
)

const project = "test-project"

// A Prometheus that scrapes the running service: a message that nobody can decode makes QuarantineNotEmpty fire and no other
// alert, and the commands of its runbook end it. A service that dies makes OutboxNotMeasured fire, until it is back.
func TestAlertsFireAndResolve(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Log("prometheus is not installed, so no alert was fired: apt-get install prometheus")
		return
	}
	binary := filepath.Join(t.TempDir(), "server")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, root+"/cmd/server").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	broker, err := localbroker.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Close() })
	client, err := broker.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if err := (localbroker.Resources{}).Create(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	private := freeAddr(t)
	environ := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PORT=0", "DATABASE_URL=" + storetest.URL(t), "TELEMETRY_ADDR=" + private,
		"PUBSUB_PROJECT=" + project, "PUBSUB_EMULATOR_HOST=" + broker.Addr(),
	}
	kill := start(t, environ, binary)
	alerts := startPrometheus(t, prometheus, private)

	eventually(t, "the service is scraped", func() bool { return has(t, alerts, "/api/v1/query?query=outbox_backlog_age_seconds", `"value"`) })
	eventually(t, "no alert fires", func() bool { return firing(t, alerts) == "" }) // before the first scrape OutboxNotMeasured did
	// With a topic's schema the broker would refuse it; somebody else's topic may have none.
	result := client.Publisher(localbroker.Topic).Publish(t.Context(), &pubsub.Message{Data: []byte("not an event")})
	if _, err := result.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "QuarantineNotEmpty fires", func() bool { return firing(t, alerts) == "QuarantineNotEmpty" })

	list := command(t, environ, binary, "quarantine", "list")
	id := regexp.MustCompile(`(?m)^(\d+)\b`).FindString(list)
	if id == "" {
		t.Fatalf("server quarantine list: no id in\n%s", list)
	}
	command(t, environ, binary, "quarantine", "delete", id)
	eventually(t, "QuarantineNotEmpty resolves", func() bool { return firing(t, alerts) == "" })

	kill()
	eventually(t, "OutboxNotMeasured fires", func() bool { return firing(t, alerts) == "OutboxNotMeasured" })
	start(t, environ, binary)
	eventually(t, "OutboxNotMeasured resolves", func() bool { return firing(t, alerts) == "" })
}

// startPrometheus starts one that scrapes the target every second and has the rules of alerts.yaml, whose time to wait is
// made a second, and returns its URL.
func startPrometheus(t *testing.T, binary, target string) string {
	t.Helper()
	r, err := readRules(alerts)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Groups {
		for i := range g.Rules {
			g.Rules[i].For = "1s"
		}
	}
	shortened, err := yaml.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [alerts.yaml]\n"+
		"scrape_configs: [{job_name: videocatalog, static_configs: [{targets: ['%s']}]}]\n", target)
	for name, content := range map[string]string{"alerts.yaml": string(shortened), "prometheus.yml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := freeAddr(t)
	start(t, os.Environ(), binary, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr)
	return "http://" + addr
}

// start starts a program, which ends with the test if not before, and returns what kills it.
func start(t *testing.T, environ []string, binary string, args ...string) (kill func()) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var log bytes.Buffer // read after Wait
	cmd.Env, cmd.Stdout, cmd.Stderr = environ, &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // it may have ended by itself
			_ = cmd.Wait()         // killed, which is an error
		}
	}
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", filepath.Base(binary), log.String())
		}
	})
	return kill
}

func command(t *testing.T, environ []string, binary string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = environ
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("server %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// firing are the names of the alerts that fire now, and are not only pending, with a space in between.
func firing(t *testing.T, prometheus string) string {
	t.Helper()
	var answer struct {
		Status string
		Data   struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	if err := json.Unmarshal(get(t, prometheus+"/api/v1/alerts"), &answer); err != nil || answer.Status != "success" {
		t.Fatalf("alerts of Prometheus: status %q, %v", answer.Status, err)
	}
	var names []string
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels["alertname"])
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// has says whether the answer holds text; false as long as Prometheus does not listen.
func has(t *testing.T, prometheus, path, text string) bool {
	t.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(prometheus, "http://"), time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return bytes.Contains(get(t, prometheus+path), []byte(text))
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	return body.Bytes()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > time.Minute {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("%s after %v", what, time.Since(began).Round(100*time.Millisecond))
}

// freeAddr is an address on which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
