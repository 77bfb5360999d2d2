package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/transport"
)

// The log has a line for every call, with its code, latency, caller and ids, and
// without its content.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	var out logBuffer
	r := start(t, transport.Config{}, func(d *deps) { d.Log = slog.New(slog.NewJSONHandler(&out, nil)) })
	const requestID = "0a000000-0000-4000-8000-000000000001"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "203.0.113.7", "x-request-id", "abc", "authorization", "Bearer secret")
	if _, err := healthpb.NewHealthClient(r.dial(t)).Check(t.Context(), nil); err != nil { // it has no line
		t.Fatal(err)
	}
	client := r.grpcClient(t)
	video, err := client.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Secret title"}, RequestId: requestID})
	must(t, err)
	if _, err := client.videos.GetVideo(t.Context(), &videov1.GetVideoRequest{Name: strings.Repeat("x", 1000)}); err == nil {
		t.Fatal("GetVideo() of a bad name succeeded")
	}
	response, err := http.Get("http://" + r.addr + "/v1/" + video.GetName())
	must(t, err)
	response.Body.Close()

	type line struct {
		Level, Msg, Method, Code, Caller, Name string
		XRequestID                             string  `json:"x_request_id"`
		LatencyMS                              float64 `json:"latency_ms"`
	}
	var got []line
	for text := range strings.Lines(out.String()) {
		var l line
		must(t, json.Unmarshal([]byte(text), &l))
		if l.LatencyMS <= 0 {
			t.Errorf("latency = %g, want more than 0: %s", l.LatencyMS, text)
		}
		got = append(got, l)
	}
	want := []line{
		{Method: "/video.v1.VideoService/CreateVideo", Code: "OK", Caller: "127.0.0.1", Name: video.GetName(), XRequestID: "abc"},
		{Method: "/video.v1.VideoService/GetVideo", Code: "InvalidArgument", Caller: "127.0.0.1", Name: strings.Repeat("x", 200)},
		{Method: "/video.v1.VideoService/GetVideo", Code: "OK", Caller: "127.0.0.1", Name: video.GetName()},
	}
	for i := range want {
		want[i].Level, want[i].Msg = "INFO", "server: request"
	}
	same(t, "lines", want, got, cmpopts.IgnoreFields(line{}, "LatencyMS"))
	if text := out.String(); strings.Contains(text, "ecret") {
		t.Errorf("the log tells secrets:\n%s", text)
	}
}

// The line of a call that was admitted, or refused, has the verified name of its caller. Without
// a name it has the address, which a caller cannot make up.
func TestRequestsAreLoggedWithTheirCaller(t *testing.T) {
	t.Parallel()
	var out logBuffer
	r := start(t, transport.Config{}, func(d *deps) {
		d.Log = slog.New(slog.NewJSONHandler(&out, nil))
		d.Admit = admitting(func(ctx context.Context, method string) (string, error) {
			who := strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), "")
			if who == "stranger@example.com" {
				return who, status.Error(codes.PermissionDenied, "the caller may not do this")
			}
			return who, nil
		})
	})
	videos := r.grpcClient(t).videos
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "203.0.113.7")
	want := []string{"editor@example.com", "stranger@example.com", "127.0.0.1"}
	for _, who := range []string{"editor@example.com", "stranger@example.com", ""} {
		called := ctx
		if who != "" {
			called = metadata.AppendToOutgoingContext(ctx, "authorization", who)
		}
		if _, err := videos.ListVideos(called, nil); (err != nil) != (who == "stranger@example.com") {
			t.Errorf("%q: ListVideos() = %v, want only the stranger refused", who, err)
		}
	}
	var got []string
	for text := range strings.Lines(out.String()) {
		var line struct{ Caller string }
		must(t, json.Unmarshal([]byte(text), &line))
		got = append(got, line.Caller)
	}
	same(t, "callers", want, got)
}

// Calls over gRPC and REST are counted by method and code.
func TestCallsAreObserved(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	r, c := serve(t, transport.Config{}, func(d *deps) { d.Metrics = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)) })
	ask(t, r, "GET", "/v1/videos/none", "")
	for range 2 {
		_, err := c.videos.ListVideos(t.Context(), nil)
		must(t, err)
	}
	r.stop()
	must(t, <-r.done)
	calls := histogram(t, reader, "rpc.server.call.duration")
	counts := make(map[string]uint64)
	for _, point := range calls.DataPoints {
		method, _ := point.Attributes.Value("rpc.method")
		code, _ := point.Attributes.Value("rpc.response.status_code")
		counts[method.AsString()+" "+code.AsString()] += point.Count
		for _, attr := range point.Attributes.ToSlice() {
			if attr.Value.Type() == attribute.STRING && strings.Contains(attr.Value.AsString(), "videos/") {
				t.Errorf("%s = %s has no bound", attr.Key, attr.Value.AsString())
			}
		}
	}
	same(t, "calls", map[string]uint64{"video.v1.VideoService/GetVideo INVALID_ARGUMENT": 1, "video.v1.VideoService/ListVideos OK": 2}, counts)
}

// A request that ends before its method is called has a line over REST, without its path and
// query, and no line over gRPC. Of these only a message that cannot be decoded is counted.
func TestWhatIsNoCallIsLoggedOverREST(t *testing.T) {
	t.Parallel()
	var out logBuffer
	reader := sdkmetric.NewManualReader()
	r := start(t, transport.Config{}, func(d *deps) {
		d.Log = slog.New(slog.NewJSONHandler(&out, nil))
		d.Metrics = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	})
	for request, want := range map[string]int{
		"GET /v1/secret": http.StatusNotFound, "PUT /v1/videos": http.StatusMethodNotAllowed, "POST /v1/videos {secret": http.StatusBadRequest,
		"GET /v1/videos?secret=1": http.StatusBadRequest, "SECRET /v1/videos": http.StatusMethodNotAllowed,
		"GET /v1/catalogEntries:watch?secret=1": http.StatusBadRequest,
	} {
		parts := append(strings.Fields(request), "")
		if response, _ := ask(t, r, parts[0], parts[1], parts[2], "X-Request-Id", "abc", "X-Forwarded-For", "203.0.113.7"); response.StatusCode != want {
			t.Errorf("%s = %s, want %d", request, response.Status, want)
		}
	}
	conn := r.dial(t)
	for method, want := range map[string]codes.Code{
		"/video.v1.VideoService/Nothing": codes.Unimplemented, "/nobody.v1.NoService/Nothing": codes.Unimplemented, "/Nothing": codes.Unimplemented,
		"/video.v1.VideoService/GetVideo": codes.Internal, // the name is not UTF-8
	} {
		if err := conn.Invoke(t.Context(), method, wrapperspb.Bytes([]byte{0xff}), new(videov1.Video)); status.Code(err) != want {
			t.Errorf("%s = %v, want %s", method, err, want)
		} else if st := status.Convert(err); want == codes.Unimplemented && !slices.Equal(reasonsOf(st), []string{names.ErrorDomain + " METHOD_UNKNOWN"}) {
			t.Errorf("%s has the reasons %q, want METHOD_UNKNOWN", method, reasonsOf(st))
		}
	}
	r.stop()
	must(t, <-r.done)
	lines := make(map[string]int)
	for text := range strings.Lines(out.String()) {
		var line struct {
			Msg, Method, Code, Caller string
			XRequestID                string `json:"x_request_id"`
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil || strings.Contains(text, "secret") {
			t.Errorf("line = %s, %v, want no secret", text, err)
		}
		caller, _, _ := strings.Cut(line.Caller, ":") // without the port
		lines[strings.Join([]string{line.Msg, line.Method, line.Code, caller, line.XRequestID}, "|")]++
	}
	const who = "|127.0.0.1|abc"
	if diff := cmp.Diff(map[string]int{
		"server: request|REST GET|NotFound" + who: 1, "server: request|REST GET|InvalidArgument" + who: 2, "server: request|REST POST|InvalidArgument" + who: 1,
		"server: request|REST PUT|Unimplemented" + who: 1, "server: request|REST SECRET|Unimplemented" + who: 1,
	}, lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	var got []string
	for _, point := range histogram(t, reader, "rpc.server.call.duration").DataPoints {
		method, _ := point.Attributes.Value("rpc.method")
		code, _ := point.Attributes.Value("rpc.response.status_code")
		got = append(got, fmt.Sprintf("%s %s %d", method.AsString(), code.AsString(), point.Count))
	}
	same(t, "calls", []string{"video.v1.VideoService/GetVideo INTERNAL 1"}, got)
}

// MaxCalls calls may run, and half as many streams besides. More are refused until a call has
// ended, and are counted and logged.
func TestRefusedCallsAreObserved(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	r, c := serve(t, transport.Config{MaxCalls: 2}, func(d *deps) { d.Metrics = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)) })
	counts := func() map[string]int64 {
		got := make(map[string]int64)
		var data metricdata.ResourceMetrics
		must(t, reader.Collect(context.Background(), &data))
		for _, scope := range data.ScopeMetrics {
			for _, m := range scope.Metrics {
				if m.Name != "server.calls.refused" {
					continue
				}
				for _, point := range m.Data.(metricdata.Sum[int64]).DataPoints {
					kind, _ := point.Attributes.Value("kind")
					got[kind.AsString()] = point.Value
				}
			}
		}
		return got
	}
	same(t, "refused, before there was a call", map[string]int64{"call": 0, "stream": 0}, counts())
	next(t, watchFrom(t, c, ""))
	entered, release := hang(r)
	results := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := c.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()})
			results <- err
		}()
		<-entered
	}
	_, call := c.videos.ListVideos(t.Context(), nil)
	_, stream := watchFrom(t, c, "").Recv()
	for _, err := range []error{call, stream} {
		if reasons := reasonsOf(status.Convert(err)); status.Code(err) != codes.ResourceExhausted || strings.Join(reasons, ",") != names.ErrorDomain+" TOO_MANY_CALLS" {
			t.Errorf("a call too many = %v with %q, want ResourceExhausted because of TOO_MANY_CALLS", err, reasons)
		}
	}
	for path, want := range map[string]int{"/v1/videos": 429, "/v1/catalogEntries:watch": 429, "/health/live": 200} {
		if response, _ := ask(t, r, "GET", path, ""); response.StatusCode != want {
			t.Errorf("GET %s: %s, want %d", path, response.Status, want)
		}
	}
	release()
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	mustCreate(t, c, film()) // there is room again
	same(t, "refused", map[string]int64{"call": 2, "stream": 2}, counts())
	if log := r.log.String(); strings.Count(log, `msg="server: call refused, there are too many" kind=call most=2`) != 2 || strings.Count(log, "kind=stream most=1") != 2 {
		t.Errorf("log = %s, want a line for each of four", log)
	}
}

func histogram(t *testing.T, reader sdkmetric.Reader, name string) metricdata.Histogram[float64] {
	t.Helper()
	var data metricdata.ResourceMetrics
	must(t, reader.Collect(context.Background(), &data))
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == name {
				return m.Data.(metricdata.Histogram[float64])
			}
		}
	}
	t.Fatalf("there is no %s", name)
	return metricdata.Histogram[float64]{}
}

// If the process is stuck, /health/live fails, and /health/ready does not.
func TestStuckIsNotLive(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{}, func(d *deps) { d.Live = func() error { return errors.New("outbox: worker 0 has not come by") } })
	live, _ := ask(t, r, "GET", "/health/live", "")
	ready, _ := ask(t, r, "GET", "/health/ready", "")
	if live.StatusCode != http.StatusServiceUnavailable || ready.StatusCode != http.StatusOK {
		t.Errorf("/health/live = %s, /health/ready = %s, want 503 and 200", live.Status, ready.Status)
	}
	if !strings.Contains(r.log.String(), "worker 0 has not come by") {
		t.Errorf("the log does not say who is stuck: %s", r.log.String())
	}
}
