package cors

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/transport"
)

var must = pgtest.Must

// catalog has the messages 1 and 2, whose resume tokens are a and b.
type catalog struct {
	catalogv1.UnimplementedCatalogServiceServer
}

func (catalog) WatchCatalogEntries(r *catalogv1.WatchCatalogEntriesRequest, stream grpc.ServerStreamingServer[catalogv1.WatchCatalogEntriesResponse]) error {
	for i, token := range []string{"a", "b"} {
		switch {
		case r.GetResumeToken() == "nonsense":
			return status.Error(codes.InvalidArgument, "no token")
		case i == 0 && r.GetResumeToken() == "a":
			continue
		}
		if err := stream.Send(&catalogv1.WatchCatalogEntriesResponse{ResumeToken: token}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return status.Error(codes.Unavailable, "the server stops")
}

// listen serves the watch behind the option, and returns its URL. stop ends the server.
func listen(t *testing.T) (url string, stop context.CancelFunc) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	server, err := transport.New(transport.Config{}, transport.Deps{
		Listener: listener, Wrap: withEvents, Log: slog.New(slog.DiscardHandler),
		Services: []transport.Service{{Desc: &catalogv1.CatalogService_ServiceDesc, Handler: catalog{}, Gateway: catalogv1.RegisterCatalogServiceHandler}},
	})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return "http://" + listener.Addr().String() + "/v1/catalogEntries:watch", stop
}

// open opens a watch as EventSource does.
func open(t *testing.T, url, lastID string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	must(t, err)
	request.Header.Set("Accept", eventStream)
	if lastID != "" {
		request.Header.Set("Last-Event-ID", lastID)
	}
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response, bufio.NewScanner(response.Body)
}

// next reads an event: its type, its id and its data.
func next(t *testing.T, of *bufio.Scanner) (kind, id string, data map[string]any) {
	t.Helper()
	kind = "message"
	for of.Scan() && of.Text() != "" {
		switch name, value, _ := strings.Cut(of.Text(), ": "); name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			if err := json.Unmarshal([]byte(value), &data); err != nil {
				t.Fatalf("data %q: %v", value, err)
			}
		default:
			t.Errorf("field %q, want id, event or data", of.Text())
		}
	}
	must(t, of.Err())
	return kind, id, data
}

// A watch arrives message by message. It resumes behind the last event that the browser has,
// even if the URL has another token. An error that ends the watch is an event.
func TestWatchByEvents(t *testing.T) {
	t.Parallel()
	url, stop := listen(t)
	response, events := open(t, url, "")
	if got := response.Header.Get("Content-Type") + " " + response.Header.Get("X-Accel-Buffering") + " " + response.Header.Get("Cache-Control"); got != eventStream+" no no-store" {
		t.Errorf("type and headers for proxies: %s", got)
	}
	for _, want := range []string{"a", "b"} {
		if kind, id, data := next(t, events); kind != "message" || id != want || data["resumeToken"] != want {
			t.Errorf("event %s %q %v, want a message with its token %s as id", kind, id, data, want)
		}
	}
	for _, url := range []string{url, url + "?resume_token=b"} {
		_, events := open(t, url, "a")
		if _, id, _ := next(t, events); id != "b" {
			t.Errorf("%s behind the event a: %q, want b", url, id)
		}
	}
	stop()
	if kind, _, data := next(t, events); kind != "error" || codeIn(data) != "UNAVAILABLE" {
		t.Errorf("last event %s %v, want UNAVAILABLE as event", kind, data)
	}
}

// A watch that fails before its first message is an ordinary error.
func TestWatchThatFails(t *testing.T) {
	t.Parallel()
	url, _ := listen(t)
	response, _ := open(t, url, "nonsense")
	var data map[string]any
	if err := json.NewDecoder(response.Body).Decode(&data); err != nil || response.StatusCode != http.StatusBadRequest || codeIn(data) != "INVALID_ARGUMENT" {
		t.Errorf("with a token that is none: %s %v, %v, want 400 and INVALID_ARGUMENT", response.Status, data, err)
	}
}

// codeIn returns the name of the code of an error.
func codeIn(data map[string]any) any {
	failed, _ := data["error"].(map[string]any)
	return failed["status"]
}
