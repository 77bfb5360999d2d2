package transport

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A port without authentication accepts requests for names of this machine, for addresses
// and for the hosts that are set. No port accepts writes of pages of another origin.
func TestRefusePages(t *testing.T) {
	t.Parallel()
	none, some := []string{"localhost"}, []string{"localhost", "Api.internal"}
	const evil = "http://evil.example"
	for _, tt := range []struct {
		name         string
		hosts        []string
		method, host string
		header       []string
		refused      string // a part of the message; empty: not refused
	}{
		{"localhost", none, "POST", "localhost:8080", nil, ""},
		{"localhost in capitals, with a dot", none, "POST", "LOCALHOST.:8080", nil, ""},
		{"a name below localhost", none, "POST", "app.localhost:8080", nil, ""},
		{"IPv4", none, "POST", "127.0.0.2:8080", nil, ""},
		{"IPv6", none, "POST", "[::1]:8080", nil, ""},
		{"IPv6 without a port", none, "POST", "[::1]", nil, ""},
		{"the address of a pod", none, "GET", "10.1.2.3:9090", nil, ""},
		{"a host that is set", some, "POST", "api.INTERNAL:8080", nil, ""},
		{"any host", []string{"localhost", "*"}, "POST", "evil.example", nil, ""},
		{"callers are authenticated", nil, "POST", "evil.example", nil, ""},
		{"another name", none, "POST", "evil.example:8080", []string{"Origin", evil + ":8080"}, `"evil.example:8080"`},
		{"another name reads", none, "GET", "evil.example", []string{"Sec-Fetch-Site", "same-origin"}, "ALLOWED_HOSTS"},
		{"a name that begins like localhost", none, "GET", "localhost.evil.example", nil, "ALLOWED_HOSTS"},
		{"a name that ends like localhost", none, "GET", "evillocalhost", nil, "ALLOWED_HOSTS"},
		{"a name that begins like an address", none, "GET", "127.0.0.1.evil.example", nil, "ALLOWED_HOSTS"},
		{"a user", none, "GET", "localhost@evil.example", nil, "ALLOWED_HOSTS"},
		{"no host", none, "GET", "", nil, "ALLOWED_HOSTS"},

		{"a page writes", none, "POST", "localhost", []string{"Origin", evil}, "origin"},
		{"a page without an origin writes", none, "POST", "localhost", []string{"Origin", "null"}, "origin"},
		{"a page reads, and cannot see the response", none, "GET", "localhost", []string{"Origin", evil}, ""},
		{"a page has a link", none, "GET", "localhost", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, ""},
		{"a page has a form", none, "POST", "localhost", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, "origin"},
		{"an own page", none, "POST", "localhost:8080", []string{"Origin", "http://localhost:8080", "Sec-Fetch-Site", "same-origin"}, ""},
		{"a page reads where callers are authenticated", nil, "GET", "api.example", []string{"Origin", evil}, ""},
		{"a page writes where callers are authenticated", nil, "POST", "api.example", []string{"Origin", evil}, "origin"},
	} {
		handler := RefusePages(tt.hosts, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
		request := httptest.NewRequestWithContext(t.Context(), tt.method, "/", nil)
		request.Host = tt.host
		for i := 0; i < len(tt.header); i += 2 {
			request.Header.Set(tt.header[i], tt.header[i+1])
		}
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		if request.Header.Set("Accept", "text/html,*/*;q=0.8"); tt.refused != "" {
			page := httptest.NewRecorder()
			if handler.ServeHTTP(page, request); page.Code != http.StatusForbidden || !strings.HasPrefix(page.Header().Get("Content-Type"), "text/plain") || !strings.Contains(page.Body.String(), tt.refused) {
				t.Errorf("%s, in a browser: %d %s, want 403 and text with %s", tt.name, page.Code, page.Body, tt.refused)
			}
		}
		if tt.refused == "" {
			if response.Code != http.StatusNoContent {
				t.Errorf("%s: %d %s, want it let through", tt.name, response.Code, response.Body)
			}
			continue
		}
		var body struct {
			Error struct{ Status, Message string }
		}
		if err := json.Unmarshal(response.Body.Bytes(), &body); err != nil || response.Code != http.StatusForbidden || body.Error.Status != "PERMISSION_DENIED" || !strings.Contains(body.Error.Message, tt.refused) {
			t.Errorf("%s: %d %s, want 403 with %s", tt.name, response.Code, response.Body, tt.refused)
		}
	}
}
