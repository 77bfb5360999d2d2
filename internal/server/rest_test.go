package server

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/transport"
)

// errorOf returns the error of a response, and the fields of its violations.
func errorOf(t *testing.T, answer map[string]any) (failed map[string]any, fields []string) {
	t.Helper()
	failed, ok := answer["error"].(map[string]any)
	if !ok {
		t.Fatalf("body = %v, want an error", answer)
	}
	details, _ := failed["details"].([]any)
	for _, each := range details {
		violations, _ := each.(map[string]any)["fieldViolations"].([]any)
		for _, v := range violations {
			fields = append(fields, v.(map[string]any)["field"].(string))
		}
	}
	return failed, fields
}

// reasonsOf returns the domains and the reasons of a status.
func reasonsOf(st *status.Status) (reasons []string) {
	for _, each := range st.Details() {
		if info, ok := each.(*errdetails.ErrorInfo); ok {
			reasons = append(reasons, info.GetDomain()+" "+info.GetReason())
		}
	}
	return reasons
}

// Bytes that are not UTF-8, and malformed JSON, are refused wherever they are. The
// error names the place if it is known, and the log has a line for each request.
func TestGatewayRefusesWhatIsNoText(t *testing.T) {
	t.Parallel()
	name := "/v1/videos/01890a5d-ac96-7000-8000-000000000001"
	tests := []struct{ method, path, body, field string }{
		{"GET", "/v1/videos/%ff", "", "path"},
		{"PATCH", "/v1/videos/%ff", "{}", "path"},
		{"POST", "/v1/videos/%ff:publish", "{}", "path"},
		{"GET", "/v1/videos?%ff=1", "", "%FF"},
		{"POST", "/v1/videos", "{\"title\": \"\xff\"}", "title"},
		{"POST", "/v1/videos", `{"title": 1}`, "title"},
		{"POST", "/v1/videos", `{"title": "x", "duration": "soon"}`, "duration"},
		{"PATCH", name, `{"title": "x", "createTime": "soon"}`, "createTime"},
		{"POST", "/v1/videos", `{"title": "x", "tags": "y"}`, "tags"},
		{"POST", "/v1/videos", `{"title": "x", "titel": "y"}`, "titel"},
		{"POST", "/v1/videos", `{"title": "x", "title": "y"}`, "body"},
		{"POST", "/v1/videos", `{"title": "x", "a b: c": "y"}`, "a+b%3A+c"},
		{"POST", "/v1/videos", `{"` + strings.Repeat("\xff", 200_000) + `": 1}`, strings.Repeat("%EF%BF%BD", 112)[:1000]},
		{"POST", "/v1/videos", `null`, "body"},
		{"POST", "/v1/videos", "\ufeff{\"title\": \"x\"}", "body"},
		{"PATCH", name, `{"title": "x"`, ""},
		{"POST", name + ":publish", "{\"etag\": \"\xff\"}", "etag"},
		{"GET", "/v1/videos?filter=%00", "", "filter"},
		{"GET", "/v1/videos?filter=%zz", "", ""},
		{"GET", "/v1/catalogEntries:search?query=%c3%28", "", "query"},
		{"GET", "/v1/catalogEntries:watch?resumeToken=%ed%a0%80", "", "resumeToken"},
		{"PATCH", name + "?updateMask=%C0%AF", `{"title": "x"}`, "updateMask"},
	}
	var out logBuffer
	r := start(t, transport.Config{}, func(d *deps) { d.Log = slog.New(slog.NewJSONHandler(&out, nil)) })
	for _, tt := range tests {
		response, answer := ask(t, r, tt.method, tt.path, tt.body)
		failed, fields := errorOf(t, answer)
		if response.StatusCode != http.StatusBadRequest || failed["status"] != "INVALID_ARGUMENT" || strings.Join(fields, " ") != tt.field {
			t.Errorf("%s %s %s: status %d: %v about %q, want 400 about %q", tt.method, tt.path, tt.body, response.StatusCode, failed, fields, tt.field)
		}
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Run() = %v", err)
	}
	if log := out.String(); strings.Count(log, "\n") != len(tests) || strings.Count(log, "InvalidArgument") != len(tests) {
		t.Errorf("log = %s, want one line for each of %d requests", log, len(tests))
	}
}

// The rules of HTTP hold (RFC 9110), for methods, paths, headers and bodies.
func TestGatewayFollowsHTTP(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{MaxReceive: 10_000})
	path := "/v1/" + mustCreate(t, r.grpcClient(t), film()).GetName()
	for name, tt := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		reason             string
	}{
		"method of a resource":    {"PUT", path, `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"POST to a resource":      {"POST", path, `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"method of a collection":  {"DELETE", "/v1/videos", "", nil, 405, "METHOD_NOT_ALLOWED"},
		"OPTIONS":                 {"OPTIONS", "/v1/videos", "", nil, 405, "METHOD_NOT_ALLOWED"},
		"method of a search":      {"POST", "/v1/catalogEntries:search", `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"method of a watch":       {"POST", "/v1/catalogEntries:watch", `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"unknown verb of a list":  {"POST", "/v1/videos:foo", `{}`, nil, 404, "PATH_UNKNOWN"},
		"unknown verb":            {"POST", path + ":foo", `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"unknown verb, GET":       {"GET", path + ":foo", "", nil, 400, "INVALID_REQUEST"},
		"slash at the end":        {"GET", "/v1/videos/", "", nil, 400, "INVALID_REQUEST"},
		"no JSON":                 {"POST", "/v1/videos", `<title/>`, []string{"Content-Type", "application/xml"}, 400, "INVALID_REQUEST"},
		"gzip":                    {"POST", "/v1/videos", gzipped(t, `{"title":"x"}`), []string{"Content-Encoding", "gzip"}, 415, "CONTENT_ENCODING_UNSUPPORTED"},
		"two values":              {"POST", "/v1/videos", `{"title":"x"}{"title":"y"}`, nil, 400, "INVALID_REQUEST"},
		"two values, PATCH":       {"PATCH", path, `{"title":"x"} {"title":"y"}`, nil, 400, "INVALID_REQUEST"},
		"two values of a verb":    {"POST", path + ":publish", `{}]`, nil, 400, "INVALID_REQUEST"},
		"a value and spaces":      {"POST", "/v1/videos", "\t{\"title\":\"x\"}\r\n ", nil, 200, ""},
		"too large by spaces":     {"POST", "/v1/videos", `{"title":"x"}` + strings.Repeat(" ", 10_000), nil, 413, "REQUEST_TOO_LARGE"},
		"escaped verb":            {"POST", path + "%3Apublish", `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"escaped verb, in part":   {"POST", path + ":%70ublish", `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"escaped collection":      {"GET", "/v1/%76ideos", "", nil, 404, "PATH_UNKNOWN"},
		"escaped slash":           {"GET", strings.Replace(path, "videos/", "videos%2F", 1), "", nil, 404, "PATH_UNKNOWN"},
		"escaped id":              {"GET", strings.Replace(path, "-", "%2D", 1), "", nil, 200, ""},
		"text":                    {"POST", "/v1/videos", `{"title":"x"}`, []string{"Content-Type", "text/plain"}, 200, ""},
		"too large":               {"POST", "/v1/videos", `{"title": "` + strings.Repeat("x", 10_000) + `"}`, nil, 413, "REQUEST_TOO_LARGE"},
		"too large, of parts":     {"POST", "/v1/videos?requestId=01890a5d-ac96-4000-8000-000000000001", `{"title":"` + strings.Repeat("x", 10_000-12) + `"}`, nil, 413, "REQUEST_TOO_LARGE"},
		"odd content type":        {"POST", "/v1/videos", `{"title":"x"}`, []string{"Content-Type", "application/json;charset"}, 200, ""},
		"too large, PATCH":        {"PATCH", path, `{"title": "` + strings.Repeat("x", 10_000) + `"}`, nil, 413, "REQUEST_TOO_LARGE"},
		"JSON in UTF-8":           {"POST", "/v1/videos", `{"title":"x"}`, []string{"Content-Type", "Application/JSON; charset=UTF-8"}, 200, ""},
		"what curl says":          {"POST", "/v1/videos", `{"title":"x"}`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 200, ""},
		"identity":                {"POST", "/v1/videos", `{"title":"x"}`, []string{"Content-Encoding", "identity"}, 200, ""},
		"body of a DELETE":        {"DELETE", path, `{"etag":"\"99\""}`, nil, 400, "INVALID_REQUEST"},
		"empty body of a DELETE":  {"DELETE", path, `{}`, nil, 400, "INVALID_REQUEST"},
		"body of a GET":           {"GET", path, `{}`, nil, 400, "INVALID_REQUEST"},
		"parameter of a GET":      {"GET", path + "?foo=1", "", nil, 400, "INVALID_REQUEST"},
		"mask of unknown":         {"PATCH", path + "?updateMask=titel", `{"title": "x"}`, nil, 400, "INVALID_REQUEST"},
		"outside a rule":          {"PATCH", path, `{"releaseYear": 5}`, nil, 400, "INVALID_REQUEST"},
		"unknown field":           {"POST", "/v1/videos", `{"title": "x", "titel": "y"}`, nil, 400, "INVALID_REQUEST"},
		"odd parameter":           {"GET", "/v1/videos?pageSize=x", "", nil, 400, "INVALID_REQUEST"},
		"null":                    {"POST", "/v1/videos", `null`, nil, 400, "INVALID_REQUEST"},
		"nothing":                 {"POST", "/v1/videos", "", nil, 400, "INVALID_REQUEST"},
		"odd timeout":             {"GET", path, "", []string{"Grpc-Timeout", "soon"}, 400, "INVALID_REQUEST"},
		"root":                    {"GET", "/", "", nil, 404, "PATH_UNKNOWN"},
		"two slashes":             {"GET", "/v1//videos", "", nil, 404, "PATH_UNKNOWN"},
		"gRPC over HTTP/1.1":      {"POST", "/video.v1.VideoService/GetVideo", "", []string{"Content-Type", "application/grpc"}, 404, "PATH_UNKNOWN"},
		"method override":         {"POST", path, "", []string{"X-HTTP-Method-Override", "DELETE", "Content-Type", "application/x-www-form-urlencoded"}, 405, "METHOD_NOT_ALLOWED"},
		"parameter beside a body": {"POST", path + `:publish?etag="9"`, `{}`, nil, 400, "INVALID_REQUEST"},
	} {
		t.Run(name, func(t *testing.T) {
			response, answer := ask(t, r, tt.method, tt.path, tt.body, tt.header...)
			if allow := response.Header.Get("Allow"); (allow != "") != (tt.status == 405) || strings.Contains(allow, tt.method) {
				t.Errorf("Allow: %s with status %d, want the other methods with 405 (RFC 9110, 15.5.6)", allow, response.StatusCode)
			}
			if response.StatusCode != tt.status {
				t.Errorf("status %d (%v), want %d", response.StatusCode, answer, tt.status)
			}
			if text, err := json.Marshal(answer); err != nil || strings.Contains(string(text), "\u00a0") || tt.reason != "" && !strings.Contains(string(text), `"reason":"`+tt.reason+`"`) {
				t.Errorf("body = %s, want the reason %s", text, tt.reason)
			}
		})
	}
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	w := gzip.NewWriter(&out)
	_, err := io.WriteString(w, text)
	must(t, err)
	must(t, w.Close())
	return out.String()
}

// A GET over HTTP/2 whose stream ends after its header has no body (RFC 9113, 8.1).
func TestEmptyBodyIsNone(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{})
	for body, want := range map[string]int{"": 200, "{}": 400} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+"/v1/videos", io.NopCloser(strings.NewReader(body)))
		must(t, err)
		response, err := httpClient(t, true).Do(request)
		must(t, err)
		if _ = response.Body.Close(); response.StatusCode != want {
			t.Errorf("GET with the body %q: %s, want %d", body, response.Status, want)
		}
	}
}

// HEAD is GET without the body, over HTTP/1.1 and HTTP/2.
func TestHeadIsGetWithoutBody(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{})
	path := "/v1/" + mustCreate(t, r.grpcClient(t), film()).GetName()
	for url, want := range map[string]int{
		path: 200, "/v1/videos": 200, "/v1/videos?pageSize=-1": 400, "/v1/nothing": 404, path + ":publish": 400, "/v1/catalogEntries:watch": 405, "/openapi.json": 200, "/health/live": 200, "/health/ready": 200,
	} {
		for _, http2 := range []bool{false, true} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodHead, "http://"+r.addr+url, http.NoBody)
			must(t, err)
			response, err := httpClient(t, http2).Do(request)
			must(t, err)
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != want || len(body) > 0 || response.Header.Get("Content-Type") != "application/json" {
				t.Errorf("HEAD %s, HTTP/2 %v: %d, %q, %v, want %d without a body", url, http2, response.StatusCode, body, err, want)
			}
			_ = response.Body.Close()
		}
	}
}

// The etag of a request guards a change. If-Match is not supported, and is refused.
func TestEtagsAreConditions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method, verb, body, match string
		status                    int
	}{
		"DELETE, stale":           {"DELETE", `?etag="2"`, "", "", 409},
		"DELETE, current":         {"DELETE", `?etag="1"`, "", "", 200},
		"PATCH, stale":            {"PATCH", "", `{"title":"x","etag":"\"2\""}`, "", 409},
		"verb, stale":             {"POST", ":publish", `{"etag":"\"2\""}`, "", 409},
		"verb, current":           {"POST", ":publish", `{"etag":"\"1\""}`, "", 200},
		"verb, in a query":        {"POST", `:publish?etag="1"`, `{}`, "", 400},
		"DELETE, If-Match":        {"DELETE", "", "", `"1"`, 400},
		"PATCH, If-Match":         {"PATCH", "", `{"title":"x"}`, "*", 400},
		"of a GET, also If-Match": {"GET", "", "", `"1"`, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, transport.Config{})
			v := mustCreate(t, r.grpcClient(t), film())
			var header []string
			if tt.match != "" {
				header = []string{"If-Match", tt.match}
			}
			response, body := ask(t, r, tt.method, "/v1/"+v.GetName()+tt.verb, tt.body, header...)
			if response.StatusCode != tt.status {
				t.Errorf("status %d, %s, want %d", response.StatusCode, body, tt.status)
			}
			if n := len(r.store.allEvents()); (n == 1) != (tt.status >= 400) {
				t.Errorf("%d events after status %d", n, tt.status)
			}
		})
	}
}

// An error over REST has one form, AIP-193's, also in a stream that has begun,
// with fields named as in the contract.
func TestErrorsOverRESTHaveOneForm(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{})
	_, answer := ask(t, r, "POST", "/v1/videos", `{"title": "x", "releaseYear": 5}`)
	failed, fields := errorOf(t, answer)
	if diff := cmp.Diff([]string{"video.release_year"}, fields); diff != "" || !strings.Contains(failed["message"].(string), "video.release_year") {
		t.Errorf("message %q; fields (-want +got):\n%s", failed["message"], diff)
	}
	_, answer = ask(t, r, "GET", "/v1/videos?orderBy=x", "")
	if failed, fields = errorOf(t, answer); failed["code"] != 400.0 || strings.Join(fields, " ") != "order_by" {
		t.Errorf("error = %v about %v, want 400 about order_by", failed, fields)
	}

	response, err := httpClient(t, false).Get("http://" + r.addr + "/v1/catalogEntries:watch")
	must(t, err)
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), `{"result":`) {
		t.Fatalf("first line = %q, %v, want a result", lines.Text(), lines.Err())
	}
	r.stop()
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	var ended map[string]any
	if err := json.Unmarshal([]byte(last), &ended); err != nil {
		t.Fatalf("last line = %q: %v", last, err)
	}
	want := map[string]any{"error": map[string]any{
		"code": 503.0, "status": "UNAVAILABLE", "message": "the server is stopping: call again",
		"details": []any{
			map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVER_STOPPING", "domain": names.ErrorDomain},
			map[string]any{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"},
		},
	}}
	drop := ended["error"].(map[string]any)["details"].([]any)[0].(map[string]any)
	delete(drop, "metadata") // protojson may or may not write an empty one
	same(t, "end of a stream", want, ended)
}

// An error that is worth a retry says when to call again, also in the header.
func TestUnavailableSaysWhenToCallAgain(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{})
	r.store.before = func(context.Context, string) error { return problem.Errorf(problem.Unavailable, "down") }
	response, answer := ask(t, r, "GET", "/v1/videos", "")
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "1" {
		t.Errorf("%s with Retry-After %q (%v), want 503 and 1", response.Status, response.Header.Get("Retry-After"), answer)
	}
}

// The reasons of this package and of the domain are in docs/errors.md.
func TestOwnReasonsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/errors.md")
	must(t, err)
	_, table, _ := strings.Cut(string(text), "\n## Reasons of the service\n")
	got := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([A-Z_]+) \\|").FindAllStringSubmatch(table, -1) {
		got[row[1]] = row[2]
	}
	want := map[string]string{
		string(problem.ReasonRequestIDReused):   "ALREADY_EXISTS",
		string(domain.ReasonVideoNotDeleted):    "ALREADY_EXISTS",
		string(domain.ReasonVideoDeleted):       "FAILED_PRECONDITION",
		string(domain.ReasonVideoState):         "FAILED_PRECONDITION",
		string(domain.ReasonPurgeNeedsDeletion): "FAILED_PRECONDITION",
		string(reasonTooManyWaits):              "RESOURCE_EXHAUSTED",
		string(reasonVersionNotSeen):            "DEADLINE_EXCEEDED",
	}
	same(t, "docs/errors.md", want, got)
}
