package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/deep"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// The client succeeds with a real server. Without a projector, its error names the failed step. In both cases no
// video is left.
func TestSmoke(t *testing.T) {
	deep.Test(t)
	for _, test := range []struct {
		name, roles, timeout, want string
	}{
		{"a service that works", "api,publisher,projector", "90s", ""},
		{"nobody projects", "api,publisher", "10s", "projector at work?"},
	} {
		t.Run(test.name, func(t *testing.T) {
			database := storetest.URL(t)
			address := startServer(t, database, test.roles)
			var out bytes.Buffer
			err := run(t.Context(), []string{"--timeout", test.timeout, "http://" + address}, "", &out)
			switch {
			case test.want == "" && (err != nil || !strings.HasPrefix(out.String(), "smoke: the service works")):
				t.Errorf("run() = %v, printed %q; want success", err, out.String())
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("run() = %v, want an error with %q", err, test.want)
			}
			if n := countVideos(t, database); n != 0 {
				t.Errorf("%d videos are left, want none", n)
			}
		})
	}
}

// countVideos returns the number of videos that are not deleted.
func countVideos(t *testing.T, database string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM video_catalog.videos WHERE delete_time IS NULL").Scan(&n); err != nil {
		t.Fatalf("count videos: %v", err)
	}
	return n
}

// startServer runs the binary until the test ends, and returns its address.
func startServer(t *testing.T, database, roles string) string {
	t.Helper()
	broker, err := localbroker.Start()
	if err != nil {
		t.Fatalf("start Pub/Sub: %v", err)
	}
	t.Cleanup(func() { broker.Close() })
	client, err := broker.Client(t.Context(), "smoke-test")
	if err != nil {
		t.Fatalf("open Pub/Sub: %v", err)
	}
	defer client.Close()
	if err := localtopics.Create(t.Context(), client, localbroker.Resources{}); err != nil {
		t.Fatalf("create resources: %v", err)
	}
	binary := filepath.Join(t.TempDir(), "server")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/server")
	build.Stderr = t.Output()
	if err := build.Run(); err != nil {
		t.Fatalf("build server: %v", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "serve")
	cmd.Env = []string{
		"PORT=0", "ROLES=" + roles, "AUTH=off", "DATABASE_URL=" + database, "PUBSUB_PROJECT=smoke-test", "PUBSUB_EMULATOR_HOST=" + broker.Addr(),
	}
	logs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatalf("read the log: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start server: %v", err)
	}
	lines := bufio.NewScanner(logs)
	address := ""
	for address == "" && lines.Scan() {
		var line struct{ Message, Msg, Addr string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Logf("server: %s", lines.Text())
			continue
		}
		address = line.Addr
	}
	ended := make(chan struct{})
	go func() { // until the process closes its log
		defer close(ended)
		for lines.Scan() {
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	if address == "" {
		t.Fatal("the server did not start")
	}
	_, port, ok := strings.Cut(address[strings.LastIndex(address, "]")+1:], ":")
	if !ok {
		t.Fatalf("the server's address is %q, want one with a port", address)
	}
	return "127.0.0.1:" + port
}

// The token is in the header that Cloud Run reads, and in the one that the service reads.
func TestTokenIsSentTwice(t *testing.T) {
	got, err := bearer("a.b.c").GetRequestMetadata(t.Context())
	want := map[string]string{"authorization": "Bearer a.b.c", "x-serverless-authorization": "Bearer a.b.c"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("GetRequestMetadata() = %v, %v, want %v", got, err, want)
	}
	if !bearer("").RequireTransportSecurity() {
		t.Error("RequireTransportSecurity() = false, want the token over TLS only")
	}
}

// An invalid URL is refused, and so is one that would send the token without TLS.
func TestBadURLs(t *testing.T) {
	for _, test := range []struct{ name, url, token, want string }{
		{"no scheme", "localhost:8080", "", "want http://HOST:PORT"},
		{"another scheme", "grpc://localhost:8080", "", "want http://HOST:PORT"},
		{"a token in the clear", "http://localhost:8080", "secret", "in the clear"},
	} {
		err := run(t.Context(), []string{test.url}, test.token, t.Output())
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: run() = %v, want an error with %q and without the token", test.name, err, test.want)
		}
	}
	if err := run(t.Context(), nil, "", t.Output()); err == nil || !strings.Contains(err.Error(), "one argument") {
		t.Errorf("no URL: run() = %v, want an error that asks for one", err)
	}
}
