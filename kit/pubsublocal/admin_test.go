package pubsublocal

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recorder records the calls of the admin endpoint.
type recorder struct {
	mu   sync.Mutex
	done []string
}

func (r *recorder) record(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, fmt.Sprintf(format, args...))
}

func (r *recorder) recorded() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.done...)
}

func (r *recorder) SetDown(down bool) { r.record("down %v", down) }
func (r *recorder) CutConnections()   { r.record("cut connections") }
func (r *recorder) CutStreams()       { r.record("cut streams") }

func (r *recorder) Duplicate(subscription string, count int) error {
	if strings.HasSuffix(subscription, "missing") {
		return status.Error(codes.NotFound, "Resource not found (resource=missing).")
	}
	r.record("duplicate %s %d", subscription, count)
	return nil
}

func startAdmin(t *testing.T) (*recorder, *faults, string) {
	t.Helper()
	r, f := &recorder{}, newFaults(&Clock{})
	ts := httptest.NewServer(newAdminHandler(r, f))
	t.Cleanup(ts.Close)
	return r, f, ts.URL
}

// Each request has taken effect when it returns.
func TestAdminCalls(t *testing.T) {
	tests := []struct {
		request string
		want    []string
	}{
		{"POST /admin/cut", []string{"cut connections"}},
		{"POST /admin/streams:cut", []string{"cut streams"}},
		{"POST /admin/duplicate?subscription=projects/p/subscriptions/s&count=3", []string{"duplicate projects/p/subscriptions/s 3"}},
		{"POST /admin/duplicate?subscription=projects/p/subscriptions/s", []string{"duplicate projects/p/subscriptions/s 1"}},
	}
	for _, tt := range tests {
		t.Run(tt.request, func(t *testing.T) {
			r, _, url := startAdmin(t)
			method, path, _ := strings.Cut(tt.request, " ")
			if code, body := call(t, method, url+path, "", nil); code != http.StatusOK || strings.TrimSpace(body) != "{}" {
				t.Errorf("%s = %d %s, want 200 {}", tt.request, code, body)
			}
			eventually(t, func() string { return cmp.Diff(tt.want, r.recorded()) }) // cut responds before it takes effect
		})
	}
}

// An outage ends after its time, by the clock of the server. A second request replaces the time.
func TestAdminDown(t *testing.T) {
	r, f, url := startAdmin(t)
	for i, length := range []string{"10s", "1m"} {
		if code, body := call(t, http.MethodPost, url+"/admin/down?for="+length, "", nil); code != http.StatusOK {
			t.Fatalf("down = %d %s, want 200", code, body)
		}
		want := []string{"down true", "down true"}[:i+1]
		eventually(t, func() string {
			f.clock.mu.Lock()
			defer f.clock.mu.Unlock()
			if len(f.clock.timers) == 0 || i == 1 && time.Until(f.clock.timers[0].at) < 50*time.Second {
				return "the end is not set yet"
			}
			return cmp.Diff(want, r.recorded())
		})
	}
	f.clock.Advance(30 * time.Second)
	if diff := cmp.Diff([]string{"down true", "down true"}, r.recorded()); diff != "" {
		t.Errorf("after 30 s (-want +got):\n%s", diff)
	}
	f.clock.Advance(30 * time.Second)
	if diff := cmp.Diff([]string{"down true", "down true", "down false"}, r.recorded()); diff != "" {
		t.Errorf("after 60 s (-want +got):\n%s", diff)
	}
}

// eventually waits until diff returns an empty text.
func eventually(t *testing.T, diff func() string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for diff() != "" {
		if time.Now().After(deadline) {
			t.Fatalf("still (-want +got):\n%s", diff())
		}
		time.Sleep(time.Millisecond)
	}
}

// Faults are injected, listed with what is left of them, and removed by id.
func TestAdminFaults(t *testing.T) {
	_, f, url := startAdmin(t)
	steps := []struct {
		request, body, want string
	}{
		{"GET /admin/faults", "", `{"faults":[]}`},
		{"POST /admin/faults", `{"method":"Publish","code":"UNAVAILABLE","times":2}`, `{"id":"1"}`},
		{"POST /admin/faults", `{"delay":"1s"}`, `{"id":"2"}`},
		{"POST /admin/faults", `{"code":"INTERNAL"}`, `{"id":"3"}`},
		{"DELETE /admin/faults/2", "", `{}`},
		{"publish", "", ""},
		{"GET /admin/faults", "", `{"faults":[{"id":"1","fault":{"method":"Publish","times":1,"code":"UNAVAILABLE"}},` +
			`{"id":"3","fault":{"code":"INTERNAL"}}]}`},
		{"publish", "", ""},
		{"GET /admin/faults", "", `{"faults":[{"id":"3","fault":{"code":"INTERNAL"}}]}`},
		{"DELETE /admin/faults", "", `{}`},
		{"GET /admin/faults", "", `{"faults":[]}`},
	}
	for i, step := range steps {
		if step.request == "publish" {
			f.take("/google.pubsub.v1.Publisher/Publish", nil)
			continue
		}
		method, path, _ := strings.Cut(step.request, " ")
		if code, body := call(t, method, url+path, step.body, nil); code != http.StatusOK || strings.TrimSpace(body) != step.want {
			t.Errorf("%d. %s = %d %s, want %s", i, step.request, code, body, step.want)
		}
	}
}

// The clock has moved when the response comes, which has the new time.
func TestAdminClock(t *testing.T) {
	_, f, url := startAdmin(t)
	code, body := call(t, http.MethodPost, url+"/admin/clock?advance=30s", "", nil)
	if code != http.StatusOK || !strings.Contains(body, `{"now":"2`) {
		t.Errorf("clock = %d %s, want the time", code, body)
	}
	if ahead := time.Until(f.clock.Now()).Round(time.Second); ahead != 30*time.Second {
		t.Errorf("the clock is ahead by %v, want 30s", ahead)
	}
}

// A bad request is refused with the name of the parameter, and has no effect.
func TestAdminRefuses(t *testing.T) {
	tests := []struct {
		request, body string
		code          int
		want          string
	}{
		{"POST /admin/faults", `{"code":"UNAVAILABLE","key":"x"}`, 400, `"key"`},
		{"POST /admin/faults", `{"method":"Publsh","code":"UNAVAILABLE"}`, 400, `"Publsh"`},
		{"POST /admin/faults", `{"times":-1,"code":"UNAVAILABLE"}`, 400, "times"},
		{"POST /admin/faults?times=3", `{"code":"UNAVAILABLE"}`, 400, "times"},
		{"POST /admin/faults", ``, 400, "body"},
		{"DELETE /admin/faults/7", "", 404, `"7"`},
		{"POST /admin/down", "", 400, "for"},
		{"POST /admin/down?for=soon", "", 400, "for"},
		{"POST /admin/down?for=0s", "", 400, "for"},
		{"POST /admin/down?for=1s&for=2s", "", 400, "for"},
		{"POST /admin/cut?connections=1", "", 400, "connections"},
		{"POST /admin/streams:cut?all", "", 400, "all"},
		{"POST /admin/duplicate", "", 400, "subscription"},
		{"POST /admin/duplicate?subscription=s&count=0", "", 400, "count"},
		{"POST /admin/duplicate?subscription=s&count=many", "", 400, "count"},
		{"POST /admin/duplicate?subscription=missing", "", 404, "missing"},
		{"POST /admin/clock?advance=-5s", "", 400, "advance"},
		{"POST /admin/clock?by=5s", "", 400, "by"},
		{"POST /admin/explode", "", 404, "/admin/explode"},
	}
	for _, tt := range tests {
		t.Run(tt.request+" "+tt.body, func(t *testing.T) {
			r, f, url := startAdmin(t)
			method, path, _ := strings.Cut(tt.request, " ")
			code, body := call(t, method, url+path, tt.body, nil)
			if got := parseError(t, body).Error; code != tt.code || !strings.Contains(got.Message, tt.want) {
				t.Errorf("%s = %d %q, want %d naming %s", tt.request, code, got.Message, tt.code, tt.want)
			}
			if len(r.recorded()) != 0 || len(f.active()) != 0 {
				t.Errorf("%s did %v and left faults %v, want nothing", tt.request, r.recorded(), f.active())
			}
		})
	}
}
