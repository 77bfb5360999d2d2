package service

import (
	"context"
	"net/http"
	"testing"
	"time"

	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/engine/rig"
)

// A stop does not wait for a database that no longer responds.
func TestStopWithSilentDatabaseEndsInTime(t *testing.T) {
	t.Parallel()
	network := rig.NewNetwork(t, pgtest.URL(t))
	s := &stack{url: network.URL, pubsub: newBroker(t)}
	p := s.start(t, "READ_DATABASE_URL="+network.URL+"&application_name=catalog")
	list := func(within time.Duration, works bool) {
		t.Helper()
		for _, path := range []string{"/v1/videos", "/v1/catalogEntries"} { // one of each side
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+path, nil)
			must(t, err)
			response, err := http.DefaultClient.Do(request)
			if err == nil {
				err = response.Body.Close()
			}
			if (err == nil) != works {
				t.Errorf("GET %s = %v, want that it works: %t", path, err, works)
			}
		}
	}
	list(10*time.Second, true)
	network.Mute()
	list(500*time.Millisecond, false) // both sides have a connection whose statement was given up
	began := time.Now()
	p.stop(t)
	if took, most := time.Since(began), 4500*time.Millisecond; took > most { // no request is in flight, and the pool alone would wait 5 s
		t.Errorf("the stop took %s, want at most %s", took, most)
	}
}
