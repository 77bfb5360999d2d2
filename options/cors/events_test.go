package cors

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Each line of a watch is an event, also if it comes in pieces. Other responses stay as they are.
func TestEvents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, target, accept, lastID string
		status                       int
		content                      string
		writes                       []string
		wantContent, wantBody, query string
	}{
		{
			"messages", "/v1/things:watch", eventStream, "", 200, lines,
			[]string{`{"result":{"a":1,"resumeToken":"t1"}}`, "\n", `{"result":{"resumeToken":"t2"}}` + "\n" + `{"result":`, `{}}` + "\n"},
			eventStream, "id: t1\ndata: {\"a\":1,\"resumeToken\":\"t1\"}\n\nid: t2\ndata: {\"resumeToken\":\"t2\"}\n\ndata: {}\n\n", "",
		},
		{
			"an error ends them", "/v1/things:watch", eventStream, "", 200, lines, []string{`{"error":{"code":503}}` + "\n"},
			eventStream, "event: error\ndata: {\"error\":{\"code\":503}}\n\n", "",
		},
		{"an error before them", "/v1/things:watch", eventStream, "", 400, "application/json", []string{"{}", "\n"}, "application/json", "{}\n", ""},
		{"a watch in lines", "/v1/things:watch", "", "", 200, lines, []string{"{}\n"}, lines, "{}\n", ""},
		{"a list", "/v1/things", eventStream, "t1", 200, "application/json", []string{"{}\n"}, "application/json", "{}\n", ""},
		{"it resumes", "/v1/things:watch?resume_token=t0&x=y", eventStream, "t1", 200, lines, nil, eventStream, "", "resumeToken=t1&x=y"},
		{"lines do not", "/v1/things:watch?resume_token=t0", lines, "t1", 200, lines, nil, lines, "", "resume_token=t0"},
	} {
		query := ""
		handler := withEvents(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query = r.URL.RawQuery
			w.Header().Set("Content-Type", tt.content)
			if tt.status != http.StatusOK {
				w.WriteHeader(tt.status)
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			for _, text := range tt.writes {
				if n, err := io.WriteString(w, text); n != len(text) || err != nil {
					t.Errorf("%s: Write() = %d, %v", tt.name, n, err)
				}
			}
		}))
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tt.target, nil)
		request.Header.Set("Accept", tt.accept)
		if tt.lastID != "" {
			request.Header.Set("Last-Event-ID", tt.lastID)
		}
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		if got := response.Header().Get("Content-Type"); got != tt.wantContent || response.Code != tt.status || response.Body.String() != tt.wantBody || query != tt.query {
			t.Errorf("%s: %d %s %q, query %q, want %d %s %q, %q", tt.name, response.Code, got, response.Body, query, tt.status, tt.wantContent, tt.wantBody, tt.query)
		}
	}
}
