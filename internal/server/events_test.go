package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/transport"
)

const ndjson = "application/x-ndjson"

// getStream opens a watch over REST, and returns a reader of its lines.
func getStream(t *testing.T, url string, header ...string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	return getStreamBy(t, httpClient(t, false), url, header...)
}

// getStreamBy is getStream with a client of the caller.
func getStreamBy(t *testing.T, client *http.Client, url string, header ...string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(request)
	must(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response, bufio.NewScanner(response.Body)
}

// A watch is lines of JSON, as OpenAPI describes them, and no proxy may buffer them.
func TestWatchOverRESTHasItsType(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{})
	mustPublish(t, r.grpcClient(t), mustCreate(t, r.grpcClient(t), &videov1.Video{Title: "Ran"}))
	content := loadOpenAPI(t, r).Paths.Value("/v1/catalogEntries:watch").Get.Responses.Status(http.StatusOK).Value.Content
	for _, accept := range []string{"", "*/*", "application/json", "text/event-stream"} {
		response, lines := getStream(t, "http://"+r.addr+"/v1/catalogEntries:watch", "Accept", accept)
		got := []string{response.Header.Get("Content-Type"), response.Header.Get("X-Accel-Buffering"), response.Header.Get("Cache-Control")}
		same(t, fmt.Sprintf("Accept %q: type and headers for proxies", accept), []string{ndjson, "no", "no-store"}, got)
		lines.Scan()
		var line any
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("Accept %q: first line %q: %v", accept, lines.Text(), err)
		}
		if err := content[ndjson].Schema.Value.VisitJSON(line); err != nil {
			t.Errorf("Accept %q: first line %s is not as described: %v", accept, lines.Text(), err)
		}
	}
}

// A stream and its connection outlive the timeouts of a header and of a call, over gRPC and REST.
// net/http of Go 1.26.6 ended each HTTP/2 connection at the timeout of a header.
func TestStreamOutlivesTimeouts(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{ReadHeaderTimeout: time.Second, CallTimeout: 3 * time.Second})
	stream := watchFrom(t, c, "")
	next(t, stream)
	_, overHTTP1 := getStreamBy(t, httpClient(t, false), "http://"+r.addr+"/v1/catalogEntries:watch")
	_, overHTTP2 := getStreamBy(t, httpClient(t, true), "http://"+r.addr+"/v1/catalogEntries:watch")
	time.Sleep(5 * time.Second)
	mustPublish(t, c, mustCreate(t, c, &videov1.Video{Title: "late"}))
	for text := ""; text != "+late"; {
		text, _ = next(t, stream) // fails at the end of the stream
	}
	for _, lines := range []*bufio.Scanner{overHTTP1, overHTTP2} {
		for !strings.Contains(lines.Text(), `"late"`) {
			if !lines.Scan() {
				t.Fatalf("the stream ended before the entry: %v", lines.Err())
			}
		}
	}
}
