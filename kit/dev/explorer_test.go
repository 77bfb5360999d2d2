package dev

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The explorer shows the API of the server and can call it. The server can still refuse pages of other sites.
func TestExplorer(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "server: "+r.URL.Path)
	})))
	t.Cleanup(api.Close)
	page := httptest.NewServer(explorer(strings.TrimPrefix(api.URL, "http://")))
	t.Cleanup(page.Close)
	for _, test := range []struct {
		method, path, origin string
		code                 int
		want                 string
	}{
		{http.MethodGet, "/explorer/", "", http.StatusOK, `id="swagger-ui"`},
		{http.MethodGet, "/explorer/swagger-initializer.js", "", http.StatusOK, `"/openapi.json"`},
		{http.MethodGet, "/explorer/swagger-ui-bundle.js", "", http.StatusOK, "SwaggerUIBundle"},
		{http.MethodGet, "/openapi.json", "", http.StatusOK, "server: /openapi.json"},
		{http.MethodPost, "/v1/things/1:do", page.URL, http.StatusOK, "server: /v1/things/1:do"},
		{http.MethodPost, "/v1/things", "http://other.test", http.StatusForbidden, "cross-origin"},
	} {
		request, err := http.NewRequestWithContext(t.Context(), test.method, page.URL+test.path, http.NoBody)
		must(t, err)
		if test.origin != "" {
			request.Header.Set("Origin", test.origin)
		}
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != test.code || !strings.Contains(string(body), test.want) {
			t.Errorf("%s %s from %q = %s, %.100q, %v, want %d with %q", test.method, test.path, test.origin, response.Status, body, err, test.code, test.want)
		}
	}
}
