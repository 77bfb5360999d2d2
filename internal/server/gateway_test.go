package server

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/transport"
)

// ask sends one HTTP request and returns the response and its JSON.
func ask(t *testing.T, r *running, method, path, body string, header ...string) (*http.Response, map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.addr+path, strings.NewReader(body))
	must(t, err)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := httpClient(t, false).Do(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	if got := response.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("%s %s: content type %q, want JSON; body %q", method, path, got, text)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatalf("%s %s: %v in %q", method, path, err, text)
	}
	return response, fields
}

// JSON has the names and the shape that clients count on.
func TestGatewayAnswersJSON(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{})
	response, got := ask(t, r, "POST", "/v1/videos?requestId=6dbd2f2c-57f8-4e3b-9d3c-0a3f2f7c1a11", `{"title": "x", "duration": "1.5s"}`)
	name, _ := got["name"].(string)
	createTime := got["createTime"]
	want := map[string]any{
		"name": name, "title": "x", "description": "", "releaseYear": 0.0, "duration": "1.500s", "languageCode": "", "tags": []any{},
		"state": "STATE_DRAFT", "version": "1", "createTime": createTime, "updateTime": createTime, "etag": `"1"`,
		"createUser": "", "updateUser": "",
	}
	if diff := cmp.Diff(want, got); response.StatusCode != http.StatusOK || diff != "" {
		t.Errorf("create: status %d (-want +got):\n%s", response.StatusCode, diff)
	}
	for header := range response.Header {
		if strings.HasPrefix(header, "Grpc-") {
			t.Errorf("header %s in the response, want none of gRPC's", header)
		}
	}
	_, again := ask(t, r, "POST", "/v1/videos?request_id=6dbd2f2c-57f8-4e3b-9d3c-0a3f2f7c1a11", `{"title": "x", "duration": "1.5s"}`)
	if again["name"] != name {
		t.Errorf("repeated: name %v, want %v", again["name"], name)
	}
	_, list := ask(t, r, "GET", "/v1/catalogEntries", "")
	same(t, "empty list", map[string]any{"catalogEntries": []any{}, "nextPageToken": ""}, list)
	response, got = ask(t, r, "POST", "/"+"v1/"+name+":publish", `{"etag": "\"9\""}`)
	failed, _ := errorOf(t, got)
	wantError := map[string]any{
		"code": 409.0, "status": "ABORTED", "message": failed["message"],
		"details": []any{map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ETAG_MISMATCH", "domain": names.ErrorDomain}},
	}
	if diff := cmp.Diff(wantError, failed); response.StatusCode != http.StatusConflict || diff != "" {
		t.Errorf("stale etag: status %d, want 409 (-want +got):\n%s", response.StatusCode, diff)
	}
}

// PATCH changes the fields in the body, also to nothing; a video that was read
// may be sent back as it came; and a given mask may have the names of JSON.
func TestGatewayDerivesTheMask(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		query, body string
		changed     []string
	}{
		"one":               {"", `{"title": "x"}`, []string{"title"}},
		"an empty mask":     {"?updateMask=", `{"title": "x"}`, []string{"title"}},
		"to nothing":        {"", `{"title": "x", "description": "", "tags": [], "duration": null}`, []string{"title", "description", "duration", "tags"}},
		"a given mask":      {"?updateMask=releaseYear,title", `{"releaseYear": 2000, "title": "x", "description": ""}`, []string{"title", "release_year"}},
		"its other name":    {"?update_mask=release_year", `{"release_year": 2000, "title": "x"}`, []string{"release_year"}},
		"everything":        {"?updateMask=*", `{"title": "x"}`, []string{"title", "description", "release_year", "duration", "language_code", "tags"}},
		"as it was read":    {"", "", nil},
		"read and changed":  {"", `"title": "x"`, []string{"title"}},
		"only output":       {"", `{"state": "STATE_PUBLISHED", "version": "7"}`, nil},
		"output in a mask":  {"?updateMask=title,state,createTime", `{"title": "x", "state": "STATE_PUBLISHED"}`, []string{"title"}},
		"broken outside":    {"?updateMask=title", `{"title": "x", "releaseYear": 5, "languageCode": "!"}`, []string{"title"}},
		"nothing":           {"", `{}`, nil},
		"with the old etag": {"", `{"title": "x", "etag": "\"1\""}`, []string{"title"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, transport.Config{})
			path := "/v1/" + mustCreate(t, r.grpcClient(t), film()).GetName()
			body := tt.body
			if name == "as it was read" || name == "read and changed" {
				_, read := ask(t, r, "GET", path, "")
				if body != "" {
					read["title"] = "x"
				}
				text, err := json.Marshal(read)
				must(t, err)
				body = string(text)
			}
			if response, got := ask(t, r, "PATCH", path+tt.query, body); response.StatusCode != http.StatusOK {
				t.Fatalf("status = %d (%v), want 200", response.StatusCode, got)
			}
			var changed []string
			for _, event := range r.store.allEvents()[1:] {
				changed = append(changed, event.ChangedFields...)
			}
			same(t, "changed fields", tt.changed, changed)
		})
	}
}
