package server

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/transport"
)

// The middleware of Wrap gets all requests first.
func TestWrapGetsAllRequests(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{Hosts: []string{"localhost"}}, func(d *deps) {
		d.Wrap = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Wrapped", r.URL.Path)
				next.ServeHTTP(w, r)
			})
		}
	})
	for _, path := range []string{"/v1/videos", "/health/live", "/openapi.json", "/nothing"} {
		if response, _ := ask(t, r, "POST", path, "", "Origin", "https://evil.example"); response.Header.Get("X-Wrapped") != path || response.StatusCode != http.StatusForbidden {
			t.Errorf("POST %s of another origin: %s, X-Wrapped %q, want 403 behind the middleware", path, response.Status, response.Header.Get("X-Wrapped"))
		}
	}
}

// A port without authentication refuses other hosts over every transport, before a call.
func TestOtherHostsAreRefused(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{Hosts: []string{"localhost"}})
	if _, err := c.videos.ListVideos(t.Context(), nil); err != nil {
		t.Errorf("by address: %v", err)
	}
	_, err := r.grpcClient(t, grpc.WithAuthority("evil.example")).videos.ListVideos(t.Context(), nil)
	if st := status.Convert(err); st.Code() != codes.PermissionDenied || !strings.Contains(st.Message(), "evil.example") || len(st.Details()) != 1 {
		t.Errorf("by another authority: %v, want PermissionDenied with its reason", err)
	}
	for _, http2 := range []bool{false, true} {
		for _, path := range []string{"/v1/videos", "/v1/catalogEntries:watch", "/health/ready", "/openapi.json"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+path, nil)
			must(t, err)
			request.Host = "evil.example"
			response, err := httpClient(t, http2).Do(request)
			must(t, err)
			if _ = response.Body.Close(); response.StatusCode != http.StatusForbidden {
				t.Errorf("GET %s by another host, HTTP/2 %t: %s, want 403", path, http2, response.Status)
			}
		}
	}
}
