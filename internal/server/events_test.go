package server

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/port"
)

const ndjson = "application/x-ndjson"

// getStream opens a watch over REST, and returns a reader of its lines.
func getStream(t *testing.T, url string, header ...string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	return getStreamBy(t, httpClient(t, false), url, header...)
}

// getStreamBy is getStream with a client of the caller.
func getStreamBy(t *testing.T, client *http.Client, url string, header ...string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response, bufio.NewScanner(response.Body)
}

// A watch is lines of JSON, and no proxy may keep them back.
func TestWatchOverRESTHasItsType(t *testing.T) {
	t.Parallel()
	r := start(t, port.Config{})
	mustPublish(t, r.grpcClient(t), mustCreate(t, r.grpcClient(t), &videov1.Video{Title: "Ran"}))
	for _, accept := range []string{"", "*/*", "application/json", "text/event-stream"} {
		response, lines := getStream(t, "http://"+r.addr+"/v1/catalogEntries:watch", "Accept", accept)
		got := []string{response.Header.Get("Content-Type"), response.Header.Get("X-Accel-Buffering"), response.Header.Get("Cache-Control")}
		if diff := cmp.Diff([]string{ndjson, "no", "no-store"}, got); diff != "" {
			t.Errorf("Accept %q: type and headers for proxies (-want +got):\n%s", accept, diff)
		}
		if lines.Scan(); !strings.HasPrefix(lines.Text(), `{"result":`) {
			t.Errorf("Accept %q: first line %q, want a result", accept, lines.Text())
		}
	}
}

// Behind nginx as it comes a message arrives at once.
func TestWatchPassesNginx(t *testing.T) {
	t.Parallel()
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed: its default buffering is not tried")
	}
	r := start(t, port.Config{})
	short, err := os.MkdirTemp("", "n") // the path of a socket has 100 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	dir, socket := t.TempDir(), filepath.Join(short, "s")
	config := fmt.Sprintf(`daemon off; worker_processes 1; error_log stderr; pid %[1]s/pid;
events {}
http { access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
	server { listen unix:%[2]s; location / { proxy_pass http://%[3]s; } } }`, dir, socket, r.addr)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(nginx, "-p", dir, "-c", file)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // however it ends
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
	})
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-ended:
			t.Fatalf("nginx ended: %v", cmd.ProcessState)
		case <-time.After(10 * time.Millisecond):
		}
	}
	_, lines := getStreamBy(t, client, "http://nginx/v1/catalogEntries:watch")
	for range 2 { // a sign of life, and what comes later
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		mustPublish(t, r.grpcClient(t), mustCreate(t, r.grpcClient(t), film()))
	}
}

// A stream outlives the timeout of a header, over every transport and in every format.
// net/http of Go 1.26.6 ends each HTTP/2 connection at that time.
func TestStreamOutlivesReadHeaderTimeout(t *testing.T) {
	t.Parallel()
	const timeout, held = time.Second, 2500 * time.Millisecond
	cfg := port.Config{ReadHeaderTimeout: timeout}
	late := func(t *testing.T, r *running) {
		t.Helper()
		time.Sleep(held)
		mustPublish(t, r.grpcClient(t), mustCreate(t, r.grpcClient(t), &videov1.Video{Title: "late"}))
	}
	overAll(t, cfg, func(t *testing.T, r *running, c client) {
		stream := watchFrom(t, c, "")
		next(t, stream)
		late(t, r)
		for text := ""; text != "+late"; {
			text, _ = next(t, stream) // fails at the end of the stream
		}
	})
	for name, http2 := range map[string]bool{"lines over HTTP1": false, "lines over HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, cfg)
			_, lines := getStreamBy(t, httpClient(t, http2), "http://"+r.addr+"/v1/catalogEntries:watch")
			late(t, r)
			for lines.Scan() {
				if strings.Contains(lines.Text(), `"late"`) {
					return
				}
			}
			t.Errorf("the stream ended before the entry: %v", lines.Err())
		})
	}
}
