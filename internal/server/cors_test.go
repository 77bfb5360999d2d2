package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/port"
)

// preflight asks as a browser does before a call of another origin.
func preflight(t *testing.T, r *running, origin, method, headers string) http.Header {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, "http://"+r.addr+"/v1/videos/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Origin", origin)
	request.Header.Set("Access-Control-Request-Method", method)
	request.Header.Set("Access-Control-Request-Headers", headers) // in lower case, sorted: https://fetch.spec.whatwg.org/#cors-unsafe-request-header-names
	response, err := httpClient(t, false).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.Header
}

// Pages of the origins that are set may call; those of others, and all unless
// something is set, may not.
func TestCORSLetsOriginsIn(t *testing.T) {
	t.Parallel()
	const origin = "https://app.example.com"
	on, off := start(t, port.Config{CORSOrigins: []string{origin}}), start(t, port.Config{})
	for _, tt := range []struct {
		name            string
		r               *running
		origin, method  string
		headers, wanted string
	}{
		{"PATCH", on, origin, "PATCH", "authorization,content-type,if-match", origin},
		{"DELETE", on, origin, "DELETE", "if-match", origin},
		{"a stream that resumes", on, origin, "GET", "last-event-id", origin},
		{"a header that does not exist", on, origin, "GET", "x-other", ""},
		{"a method that does not exist", on, origin, "PUT", "", ""},
		{"another origin", on, "https://evil.example.com", "PATCH", "", ""},
		{"no origins", off, origin, "PATCH", "", ""},
	} {
		header := preflight(t, tt.r, tt.origin, tt.method, tt.headers)
		if got := header.Get("Access-Control-Allow-Origin"); got != tt.wanted || header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: preflight lets in %q, credentials %q, want %q and none", tt.name, got, header.Get("Access-Control-Allow-Credentials"), tt.wanted)
		}
	}
	for r, want := range map[*running][]string{on: {origin, "Etag, Retry-After"}, off: {"", ""}} {
		for _, path := range []string{"/v1/videos", "/v1/videos/x", "/openapi.json"} {
			response, _ := ask(t, r, "GET", path, "", "Origin", origin)
			got := []string{response.Header.Get("Access-Control-Allow-Origin"), response.Header.Get("Access-Control-Expose-Headers")}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("GET %s: origin and headers that a page may read (-want +got):\n%s", path, diff)
			}
		}
	}
}

// A page of another origin cannot write, not even by a form, which asks nobody.
func TestPagesOfOtherOriginsCannotWrite(t *testing.T) {
	t.Parallel()
	const origin = "https://app.example.com"
	on, off, all := start(t, port.Config{CORSOrigins: []string{origin}}), start(t, port.Config{}), start(t, port.Config{CORSOrigins: []string{"*"}})
	for _, tt := range []struct {
		name   string
		r      *running
		origin string
		want   int
	}{
		{"an origin that may", on, origin, http.StatusOK},
		{"another one", on, "https://evil.example.com", http.StatusForbidden},
		{"no origins", off, origin, http.StatusForbidden},
		{"our own", off, "http://" + off.addr, http.StatusOK},
		{"all", all, "https://evil.example.com", http.StatusOK},
	} {
		response, body := ask(t, tt.r, "POST", "/v1/videos", `{"title": "Ran"}`, "Origin", tt.origin)
		if response.StatusCode != tt.want {
			t.Errorf("%s: %s %v, want %d", tt.name, response.Status, body, tt.want)
		}
	}
}

// A port without authentication refuses other hosts over every transport, before a call.
func TestOtherHostsAreRefused(t *testing.T) {
	t.Parallel()
	overAll(t, port.Config{Hosts: []string{"localhost"}}, func(t *testing.T, r *running, c client) {
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
				if err != nil {
					t.Fatal(err)
				}
				request.Host = "evil.example"
				response, err := httpClient(t, http2).Do(request)
				if err != nil {
					t.Fatal(err)
				}
				if _ = response.Body.Close(); response.StatusCode != http.StatusForbidden {
					t.Errorf("GET %s by another host, HTTP/2 %t: %s, want 403", path, http2, response.Status)
				}
			}
		}
	})
}
