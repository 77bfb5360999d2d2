package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/transport"
)

// The server reports over HTTP and gRPC whether it is live and ready. Only the
// log has the reason if it is not.
func TestServerTellsItsHealth(t *testing.T) {
	t.Parallel()
	type sides map[string]func(context.Context) error
	works := func(context.Context) error { return nil }
	fails := func(context.Context) error { return errors.New("secret") }
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	const up, down = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	for name, tt := range map[string]struct {
		sides   sides
		status  int
		body    map[string]any
		serving [3]healthpb.HealthCheckResponse_ServingStatus // the process, VideoService, CatalogService
	}{
		"by itself":  {nil, 200, map[string]any{"status": "ready"}, [3]healthpb.HealthCheckResponse_ServingStatus{up, up, up}},
		"ready":      {sides{"commands": works, "queries": works}, 200, map[string]any{"status": "ready", "commands": "ready", "queries": "ready"}, [3]healthpb.HealthCheckResponse_ServingStatus{up, up, up}},
		"one side":   {sides{"commands": works, "queries": fails}, 200, map[string]any{"status": "ready", "commands": "ready", "queries": "unavailable"}, [3]healthpb.HealthCheckResponse_ServingStatus{up, up, down}},
		"the other":  {sides{"commands": hangs, "queries": works}, 200, map[string]any{"status": "ready", "commands": "unavailable", "queries": "ready"}, [3]healthpb.HealthCheckResponse_ServingStatus{up, down, up}},
		"not ready":  {sides{"commands": fails, "queries": hangs}, 503, map[string]any{"status": "not ready", "commands": "unavailable", "queries": "unavailable"}, [3]healthpb.HealthCheckResponse_ServingStatus{down, down, down}},
		"has no API": {sides{"queries": fails}, 503, map[string]any{"status": "not ready", "queries": "unavailable"}, [3]healthpb.HealthCheckResponse_ServingStatus{down, down, down}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, transport.Config{}, func(d *deps) { d.Sides = tt.sides })
			response, got := ask(t, r, "GET", "/health/ready", "")
			if diff := cmp.Diff(tt.body, got); response.StatusCode != tt.status || diff != "" {
				t.Errorf("ready: status %d, want %d (-want +got):\n%s", response.StatusCode, tt.status, diff)
			}
			client := healthpb.NewHealthClient(r.dial(t))
			for i, service := range []string{"", "video.v1.VideoService", "catalog.v1.CatalogService"} {
				response, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
				if err != nil || response.GetStatus() != tt.serving[i] {
					t.Errorf("Check(%q) = %v, %v, want %v", service, response, err, tt.serving[i])
				}
			}
			response, got = ask(t, r, "GET", "/health/live", "")
			if diff := cmp.Diff(map[string]any{"status": "live"}, got); response.StatusCode != http.StatusOK || diff != "" {
				t.Errorf("live: status %d, want 200 (-want +got):\n%s", response.StatusCode, diff)
			}
			if logged, want := strings.Contains(r.log.String(), "not ready"), tt.serving != [3]healthpb.HealthCheckResponse_ServingStatus{up, up, up}; logged != want {
				t.Errorf("log = %q, want the reason, if there is one", r.log)
			}
		})
	}
	r := start(t, transport.Config{})
	if _, err := healthpb.NewHealthClient(r.dial(t)).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("Check of an unknown service = %v, want NotFound", err)
	}
}

// Health checks share the check of a side, so a flood of them does not take the connections of the loops.
func TestHealthChecksShareACheck(t *testing.T) {
	t.Parallel()
	var running sync.Mutex
	r := start(t, transport.Config{}, func(d *deps) {
		d.Sides = map[string]func(context.Context) error{"commands": func(ctx context.Context) error {
			if !running.TryLock() {
				return errors.New("two at a time")
			}
			defer running.Unlock()
			return gax.Sleep(ctx, 200*time.Millisecond)
		}}
	})
	client := healthpb.NewHealthClient(r.dial(t))
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if response, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || response.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("Check() = %v, %v, want SERVING", response, err)
			}
		})
	}
	calls.Wait()
}

// A process without the API serves its health, too.
func TestServerWorksWithoutStores(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{}, func(d *deps) { d.entries = nil })
	if response, _ := ask(t, r, "GET", "/health/ready", ""); response.StatusCode != http.StatusOK {
		t.Errorf("ready: status %d, want 200", response.StatusCode)
	}
	response, err := healthpb.NewHealthClient(r.dial(t)).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || response.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("Check() = %v, %v, want SERVING", response, err)
	}
	if _, err := c.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()}); status.Code(err) != codes.Unimplemented {
		t.Errorf("CreateVideo() = %v, want Unimplemented", err)
	}
	if _, err := watchFrom(t, c, "").Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("a watch = %v, want Unimplemented", err)
	}
	if response, _ := ask(t, r, "GET", "/v1/videos", ""); response.StatusCode != http.StatusNotImplemented {
		t.Errorf("GET /v1/videos: %s, want 501", response.Status)
	}
}

// If the listener breaks, Run returns an error.
func TestRunFailsWithoutListener(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	deps := deps{videos: store, entries: store}
	var err error
	deps.Listener, err = net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server, _, err := newServer(transport.Config{}, deps, store)
	must(t, err)
	time.AfterFunc(50*time.Millisecond, func() { _ = deps.Listener.Close() })
	if err := server.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "serve") {
		t.Errorf("Run() with a listener that breaks = %v, want an error about it", err)
	}
}

// A server that has stopped leaves no goroutine. This test is not parallel, because
// it would count the goroutines of other tests.
func TestRunLeavesNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		useAndStop(t)
	}
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond) // connections of the clients are ending
	}
	if got := runtime.NumGoroutine(); got > before {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, want the %d there were before:\n%s", got, before, stacks[:runtime.Stack(stacks, true)])
	}
}

func useAndStop(t *testing.T) {
	t.Helper()
	t.Run("use", func(t *testing.T) {
		r, c := serve(t, transport.Config{})
		mustCreate(t, c, film())
		next(t, watchFrom(t, c, ""))
		for _, http2 := range []bool{false, true} {
			_, lines := getStreamBy(t, httpClient(t, http2), "http://"+r.addr+"/v1/catalogEntries:watch")
			if !lines.Scan() {
				t.Fatal(lines.Err())
			}
		}
		began := time.Now()
		r.stop()
		if err := <-r.done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Run took %v to end with idle streams, want well below the drain timeout", took)
		}
	})
}
