package cors

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/transport"
)

// An origin is a scheme, a host and perhaps a port, and nothing else. A wrong origin is a mistake in
// the settings of serve, and of no other command.
func TestCheckOrigin(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"*", "https://app.example.com", "http://localhost:3000", "http://[::1]:3000", "https://app.example.com:80"} {
		if err := checkOrigin(origin); err != nil {
			t.Errorf("checkOrigin(%q) = %v, want nil", origin, err)
		}
	}
	for _, origin := range []string{
		"", "app.example.com", "https://app.example.com/", "https://app.example.com/x", "https://u@app.example.com", "ftp://app.example.com", "null", "https://", "HTTPS://app.example.com", "https://a b",
		"https://*.example.com", "https://app.example.com:443", "http://app.example.com:80", "https://bücher.example",
	} {
		if err := checkOrigin(origin); err == nil || !strings.Contains(err.Error(), "is no origin") {
			t.Errorf("checkOrigin(%q) = %v, want an error", origin, err)
		}
		s := settings{Origins: []string{"*", origin}}
		if errs := s.check(app.Selection{Subcommand: "serve"}); len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "SERVER_CORS_ORIGINS: ") {
			t.Errorf("check() with %q = %v, want one mistake", origin, errs)
		}
		if errs := s.check(app.Selection{Subcommand: "migrate"}); len(errs) != 0 {
			t.Errorf("check() of migrate with %q = %v, want none", origin, errs)
		}
	}
}

const (
	origin = "https://app.example.com"
	evil   = "https://evil.example.com"
)

// served returns the checks of a port for pages of origins, before a handler that accepts every request.
func served(origins, hosts []string) http.Handler {
	return letIn(origins, transport.RefusePages(hosts, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
}

func send(t *testing.T, handler http.Handler, method string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, "http://localhost/v1/things/x", nil)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, request)
	return response
}

// A preflight lets in the origins that are set, with the methods and headers of the API.
func TestPreflight(t *testing.T) {
	t.Parallel()
	on := served([]string{origin}, nil)
	for _, tt := range []struct {
		name            string
		origin, method  string
		headers, wanted string
	}{
		{"PATCH", origin, "PATCH", "authorization,content-type", origin},
		{"DELETE", origin, "DELETE", "authorization", origin},
		{"a stream that resumes", origin, "GET", "last-event-id", origin},
		{"a header that does not exist", origin, "GET", "x-other", ""},
		{"a method that does not exist", origin, "PUT", "", ""},
		{"another origin", evil, "PATCH", "", ""},
	} {
		// Browsers name the headers in lower case, sorted: https://fetch.spec.whatwg.org/#cors-unsafe-request-header-names
		header := send(t, on, "OPTIONS", "Origin", tt.origin, "Access-Control-Request-Method", tt.method, "Access-Control-Request-Headers", tt.headers).Header()
		if got := header.Get("Access-Control-Allow-Origin"); got != tt.wanted || header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: preflight lets in %q, credentials %q, want %q and none", tt.name, got, header.Get("Access-Control-Allow-Credentials"), tt.wanted)
		}
	}
}

// Pages of the configured origins may call the API, even if the port authenticates nobody. Other
// pages may not write, not even by a form, which sends no preflight.
func TestPagesMayCall(t *testing.T) {
	t.Parallel()
	cross := []string{"Sec-Fetch-Site", "cross-site"}
	for _, tt := range []struct {
		name           string
		origins, hosts []string
		method, from   string
		want           int
		let            string
	}{
		{"an origin that may write", []string{origin}, nil, "POST", origin, 204, origin},
		{"it reads", []string{origin}, nil, "GET", origin, 204, origin},
		{"another one writes", []string{origin}, nil, "POST", evil, 403, ""},
		{"another one cannot read the response", []string{origin}, nil, "GET", evil, 204, ""},
		{"a page without an origin writes", []string{origin}, nil, "POST", "null", 403, ""},
		{"all", []string{"*"}, nil, "POST", evil, 204, "*"},
		{"nobody is authenticated", []string{origin}, []string{"localhost"}, "POST", origin, 204, origin},
		{"nobody is authenticated, another one writes", []string{origin}, []string{"localhost"}, "POST", evil, 403, ""},
		{"nobody is authenticated, all may", []string{"*"}, []string{"localhost"}, "POST", evil, 204, "*"},
	} {
		response := send(t, served(tt.origins, tt.hosts), tt.method, append(cross, "Origin", tt.from)...)
		exposed := map[bool]string{true: "Retry-After"}[tt.let != ""]
		got := []string{response.Header().Get("Access-Control-Allow-Origin"), response.Header().Get("Access-Control-Expose-Headers")}
		if diff := cmp.Diff([]string{tt.let, exposed}, got); diff != "" || response.Code != tt.want {
			t.Errorf("%s: %d, want %d; origin and headers that a page may read (-want +got):\n%s", tt.name, response.Code, tt.want, diff)
		}
	}
	request := httptest.NewRequestWithContext(t.Context(), "POST", "http://evil.example/", nil)
	request.Header.Set("Origin", origin)
	response := httptest.NewRecorder()
	if served([]string{origin}, []string{"localhost"}).ServeHTTP(response, request); response.Code != http.StatusForbidden {
		t.Errorf("by another host where nobody is authenticated: %d, want 403", response.Code)
	}
}
