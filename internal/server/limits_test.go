package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/transport"
)

// Admit is called once for each call, before anything else. A refused caller gets the
// error of Admit, and changes nothing.
func TestServerAsksWhoMayCall(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	r, c := serve(t, transport.Config{}, func(d *deps) {
		d.Admit = admitting(func(_ context.Context, method string) (string, error) {
			asked <- method
			return "", status.Error(codes.PermissionDenied, "the caller may not do this")
		})
	})
	// The request breaks a rule, too. The error does not name it.
	_, err := c.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{}})
	if status.Code(err) != codes.PermissionDenied || len(violations(err)) > 0 {
		t.Errorf("CreateVideo() = %v, want PermissionDenied without a word about fields", err)
	}
	if _, err := watchFrom(t, c, "nonsense").Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("WatchCatalogEntries() = %v, want PermissionDenied", err)
	}
	if response, _ := ask(t, r, "POST", "/v1/videos", `{}`); response.StatusCode != http.StatusForbidden {
		t.Errorf("POST /v1/videos: %s, want 403", response.Status)
	}
	close(asked)
	var got []string
	for method := range asked {
		got = append(got, method)
	}
	const create = "/video.v1.VideoService/CreateVideo"
	same(t, "methods asked about", []string{create, "/catalog.v1.CatalogService/WatchCatalogEntries", create}, got)
	if got := len(r.store.allEvents()); got != 0 {
		t.Errorf("%d events, want none", got)
	}
	if log := r.log.String(); log != "" {
		t.Errorf("log = %s, want none of the server: who refused says why", log)
	}
	if response, _ := ask(t, r, "GET", "/health/ready", ""); response.StatusCode != http.StatusOK {
		t.Errorf("/health/ready: %s, want 200: it is no call", response.Status)
	}
}

// The headers that handlers may need become metadata over REST, too. Other headers do not.
func TestHeadersBecomeMetadata(t *testing.T) {
	t.Parallel()
	type call struct {
		md     metadata.MD
		caller string
	}
	seen := make(chan call, 1)
	r := start(t, transport.Config{}, func(d *deps) {
		d.Admit = admitting(func(ctx context.Context, _ string) (string, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			seen <- call{md, transport.Caller(ctx)}
			return "", nil
		})
	})
	const trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	for header, values := range map[string][][]string{ // what is sent, and what arrives
		"X-Forwarded-For":            {{"203.0.113.7"}, {"203.0.113.7, 127.0.0.1"}},
		"Traceparent":                {{trace}, {trace}},
		"Tracestate":                 {{"a=b"}, {"a=b"}},
		"X-Request-Id":               {{"cafe"}, {"cafe"}},
		"Authorization":              {{"Bearer a"}, {"Bearer a"}},
		"X-Serverless-Authorization": {{"Bearer a"}, {"Bearer a"}},
		"Cookie":                     {{"c"}, nil}, // not for handlers
	} {
		for _, tt := range []struct {
			name, method, path, body string
			http2                    bool
			want                     []string
		}{
			{"REST over HTTP1", "GET", "/v1/videos", "", false, values[1]},
			{"REST over HTTP2", "GET", "/v1/videos", "", true, values[1]},
			{"gRPC", "POST", "/video.v1.VideoService/ListVideos", "\x00\x00\x00\x00\x00", true, values[0]},
		} {
			request, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+r.addr+tt.path, strings.NewReader(tt.body))
			must(t, err)
			request.Header = http.Header{header: values[0], "Grpc-Metadata-X": {"x"}}
			if tt.name == "gRPC" {
				request.Header.Set("Content-Type", "application/grpc")
				request.Header.Set("TE", "trailers")
			}
			response, err := httpClient(t, tt.http2).Do(request)
			must(t, err)
			if _ = response.Body.Close(); response.StatusCode != http.StatusOK {
				t.Errorf("%s, %s: %s, want 200", header, tt.name, response.Status)
				continue
			}
			got := <-seen
			if diff := cmp.Diff(tt.want, got.md.Get(header)); diff != "" || got.caller != "127.0.0.1" {
				t.Errorf("%s, %s, from %q (-want +got):\n%s", header, tt.name, got.caller, diff)
			}
		}
	}
}

// A proxy's address counts whatever is before it: the gateway would drop a header that is no ASCII.
func TestForwardedAddressOutlivesNonsense(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	r := start(t, transport.Config{}, func(d *deps) {
		d.Proxies = 1
		d.Admit = admitting(func(ctx context.Context, _ string) (string, error) {
			seen <- transport.Caller(ctx)
			return "", nil
		})
	})
	for forwarded, want := range map[string]string{"\xe9,\t203.0.113.7": "203.0.113.7", "\xe9": "127.0.0.1"} {
		ask(t, r, "GET", "/v1/videos", "", "X-Forwarded-For", forwarded)
		if got := <-seen; got != want {
			t.Errorf("the caller of a request forwarded for %q is %q, want %q", forwarded, got, want)
		}
	}
}

// A call ends after CallTimeout if its caller sets no deadline, or a later one.
func TestServerGivesEveryCallADeadline(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{CallTimeout: 300 * time.Millisecond})
	hang(r)
	for name, timeout := range map[string]time.Duration{"none": 0, "an hour": time.Hour} {
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if timeout > 0 {
			ctx, cancel = context.WithTimeout(ctx, timeout)
		}
		began := time.Now()
		_, err := c.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: film()})
		cancel()
		if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took < 250*time.Millisecond || took > 2*time.Second {
			t.Errorf("deadline %s: %v after %v, want DeadlineExceeded after 300 ms", name, err, took)
		}
	}
}

// An earlier deadline of the caller counts, over gRPC and REST, and is no warning in the log.
func TestCallersSetEarlierDeadlines(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{CallTimeout: time.Hour})
	hang(r)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.videos.ListVideos(ctx, nil); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("ListVideos() = %v, want DeadlineExceeded", err)
	}
	if response, _ := ask(t, r, "GET", "/v1/videos", "", "Grpc-Timeout", "100m"); response.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("GET /v1/videos: %s, want 504", response.Status)
	}
	r.stop()
	if err := <-r.done; err != nil || r.log.String() != "" {
		t.Errorf("Run() = %v, log = %s, want nothing: their impatience is no error of the server", err, r.log)
	}
}

// A stream ends with Unavailable when its lifetime is over, and with
// DeadlineExceeded at the deadline of its caller.
func TestServerEndsStreamsInTime(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{StreamLifetime: time.Second})
	stream := watchFrom(t, c, "")
	began := time.Now()
	next(t, stream)
	_, err := stream.Recv()
	if took := time.Since(began); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "as long as it may") || took > 3*time.Second {
		t.Errorf("Recv() = %v after %v, want Unavailable after a second", err, took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if watch, err := r.grpcClient(t).catalog.WatchCatalogEntries(ctx, nil); err == nil {
		for err == nil {
			_, err = watch.Recv()
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a watch with a deadline = %v, want DeadlineExceeded", err)
		}
	}
}

// A connection beyond the limit is served when another one ends.
func TestServerBoundsConnections(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{MaxConnections: 1})
	first, err := net.Dial("tcp", r.addr)
	must(t, err)
	defer first.Close()
	if got := firstLine(t, first, 2*time.Second); !strings.Contains(got, "200") {
		t.Errorf("the first connection: %q, want 200", got)
	}
	second, err := net.Dial("tcp", r.addr) // the system accepts it
	must(t, err)
	defer second.Close()
	if got := firstLine(t, second, 200*time.Millisecond); got != "" {
		t.Errorf("the second connection: %q, want nothing yet", got)
	}
	_ = first.Close()
	buffer := make([]byte, 100)
	_ = second.SetReadDeadline(time.Now().Add(2 * time.Second))
	if n, err := second.Read(buffer); err != nil || !strings.Contains(string(buffer[:n]), "200") {
		t.Errorf("the second connection, once the first has ended: %q, %v, want 200", buffer[:n], err)
	}
}

// A request whose body never comes counts as a call, and ends as soon as one. So does a watch.
func TestBodiesThatNeverCome(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{CallTimeout: 3 * time.Second, MaxCalls: 2})
	var conns []io.Reader
	for _, path := range []string{"/v1/videos", "/v1/videos", "/v1/catalogEntries:watch"} {
		conn, err := net.Dial("tcp", r.addr)
		must(t, err)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
		must(t, err)
		conns = append(conns, conn)
	}
	pgtest.Eventually(t, 10*time.Second, "no other call is served", func() bool {
		response, _ := ask(t, r, "GET", "/v1/videos", "")
		return response.StatusCode == http.StatusTooManyRequests
	})
	if got, err := io.ReadAll(io.MultiReader(conns...)); err != nil {
		t.Errorf("%q, %v, want the end of each connection", got, err)
	}
}

// Many small messages on a stream would hold much memory.
func TestStreamEndsAfterManyMessages(t *testing.T) {
	t.Parallel()
	client := reflectionpb.NewServerReflectionClient(start(t, transport.Config{}).dial(t))
	for _, messages := range []int{100, 101} {
		stream, err := client.ServerReflectionInfo(t.Context())
		must(t, err)
		for range messages {
			_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}) // Recv has the error
		}
		must(t, stream.CloseSend())
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) != (messages == 100) {
			t.Errorf("%d messages end with %v, want an error after 100", messages, err)
		}
	}
}

func firstLine(t *testing.T, conn net.Conn, within time.Duration) string {
	t.Helper()
	_, err := io.WriteString(conn, "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	buffer := make([]byte, 1000)
	_ = conn.SetReadDeadline(time.Now().Add(within))
	n, _ := conn.Read(buffer) // nothing, when the time is over
	line, _, _ := strings.Cut(string(buffer[:n]), "\r\n")
	return line
}
