package chaos

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// The metrics of a process are read from its private port. It is an error if the
// process does not run, has no private port, or does not respond.
func TestKept(t *testing.T) {
	t.Parallel()
	const none, one = "pgxpool_acquired_connections{} 0\n", "pgxpool_acquired_connections{} 1\n"
	for _, tt := range []struct {
		name, metrics string
		status        int
		want          []string
		fails         bool
	}{
		{"nothing", none, http.StatusOK, nil, false},
		{"a connection", one, http.StatusOK, []string{strings.TrimSpace(one)}, false},
		{"no metrics", none, http.StatusNotFound, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/metrics" || !r.Close {
					t.Errorf("asked for %s, close %t, want /metrics, true", r.URL.Path, r.Close)
				}
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.metrics)
			}))
			defer server.Close()
			p := &process{current: &execution{private: server.Listener.Addr().String(), done: make(chan struct{})}}
			if got, err := p.kept(t.Context()); !slices.Equal(got, tt.want) || (err != nil) != tt.fails {
				t.Errorf("kept() = %q, %v, want %q, an error: %t", got, err, tt.want, tt.fails)
			}
		})
	}
	for _, p := range []*process{{}, {current: &execution{done: make(chan struct{})}}} {
		if _, err := p.kept(t.Context()); err == nil {
			t.Error("kept() = nil of a process that cannot be asked, want an error")
		}
	}
}

// The whole log of a process is kept, and the addresses in it are found.
func TestReadLog(t *testing.T) {
	t.Parallel()
	const said = `{"message":"telemetry: private port open","addr":"127.0.0.1:1"}
no JSON, "addr"
{"message":"server: started","addr":"[::]:2"}
the end`
	var kept strings.Builder
	var found []string
	readLog(strings.NewReader(said), &kept, func(message, addr string) { found = append(found, message+" "+addr) })
	if want := []string{"telemetry: private port open 127.0.0.1:1", "server: started 127.0.0.1:2"}; kept.String() != said || !slices.Equal(found, want) {
		t.Errorf("readLog() kept %q and found %q, want all, and %q", kept.String(), found, want)
	}
}

// Every line of a gauge that is not 0 is returned. A missing gauge is an error.
func TestNotZero(t *testing.T) {
	t.Parallel()
	const metrics = `# TYPE outbox_backlog gauge
outbox_backlog 0
# TYPE pgxpool_acquired_connections gauge
pgxpool_acquired_connections{db_client_connection_pool_name="commands"} 0
pgxpool_acquired_connections{db_client_connection_pool_name="queries"} 10
pgxpool_acquired_connections_more{} 7
`
	lines, err := notZero(strings.NewReader(metrics), []string{"pgxpool_acquired_connections", "outbox_backlog"})
	if want := []string{`pgxpool_acquired_connections{db_client_connection_pool_name="queries"} 10`}; err != nil || !slices.Equal(lines, want) {
		t.Errorf("notZero() = %q, %v, want %q, nil", lines, err, want)
	}
	if lines, err = notZero(strings.NewReader(metrics), []string{"outbox_backlog"}); err != nil || len(lines) > 0 {
		t.Errorf("notZero() = %q, %v, want nothing", lines, err)
	}
	if lines, err = notZero(strings.NewReader("outbox_backlog 10\n"), []string{"outbox_backlog"}); err != nil || !slices.Equal(lines, []string{"outbox_backlog 10"}) {
		t.Errorf("notZero() = %q, %v, want that there are 10", lines, err)
	}
	if _, err = notZero(strings.NewReader(metrics), []string{"outbox_backlog", "other"}); err == nil || !strings.HasSuffix(err.Error(), "no other") {
		t.Errorf("notZero() = %v, want an error that names other", err)
	}
}
