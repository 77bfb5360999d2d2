package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/port"
)

// Every call is a line with its code, latency, caller and ids, and nothing of
// what it says.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	var out logBuffer
	r := start(t, port.Config{}, func(d *deps) { d.Log = slog.New(slog.NewJSONHandler(&out, nil)) })
	const requestID = "0a000000-0000-4000-8000-000000000001"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "203.0.113.7", "x-request-id", "abc", "authorization", "Bearer secret")
	client := r.grpcClient(t)
	video, err := client.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Secret title"}, RequestId: requestID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.videos.GetVideo(t.Context(), &videov1.GetVideoRequest{Name: strings.Repeat("x", 1000)}); err == nil {
		t.Fatal("GetVideo() of a bad name succeeded")
	}
	response, err := http.Get("http://" + r.addr + "/v1/" + video.GetName())
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()

	type line struct {
		Level, Msg, Method, Code, Caller, Name string
		RequestID                              string  `json:"request_id"`
		XRequestID                             string  `json:"x_request_id"`
		LatencyMS                              float64 `json:"latency_ms"`
	}
	var got []line
	for text := range strings.Lines(out.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		if l.LatencyMS <= 0 {
			t.Errorf("latency = %g, want more than 0: %s", l.LatencyMS, text)
		}
		got = append(got, l)
	}
	want := []line{
		{Method: "/video.v1.VideoService/CreateVideo", Code: "OK", Caller: "203.0.113.7", Name: video.GetName(), RequestID: requestID, XRequestID: "abc"},
		{Method: "/video.v1.VideoService/GetVideo", Code: "InvalidArgument", Caller: "127.0.0.1", Name: strings.Repeat("x", 200)},
		{Method: "/video.v1.VideoService/GetVideo", Code: "OK", Caller: "127.0.0.1", Name: video.GetName()},
	}
	for i := range want {
		want[i].Level, want[i].Msg = "INFO", "server: request"
	}
	for i := range got { // gRPC tells the port too
		got[i].Caller, _, _ = strings.Cut(got[i].Caller, ":")
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(line{}, "LatencyMS")); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if text := out.String(); strings.Contains(text, "ecret") {
		t.Errorf("the log tells secrets:\n%s", text)
	}
}

// Whose call was admitted, or refused, is told by name and not by an address
// that anybody may make up; of an address so long that it does not fit, the end
// is told, which the front end added.
func TestRequestsAreLoggedWithTheirCaller(t *testing.T) {
	t.Parallel()
	var out logBuffer
	r := start(t, port.Config{}, func(d *deps) {
		d.Log = slog.New(slog.NewJSONHandler(&out, nil))
		d.Admit = func(ctx context.Context, method string) (string, error) {
			who := strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), "")
			if who == "stranger@example.com" {
				return who, status.Error(codes.PermissionDenied, "the caller may not do this")
			}
			return who, nil
		}
	})
	client := r.grpcClient(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", strings.Repeat("203.0.113.7, ", 100)+"198.51.100.1")
	var want []string
	for _, who := range []string{"editor@example.com", "stranger@example.com", ""} {
		called := ctx
		if who != "" {
			called = metadata.AppendToOutgoingContext(ctx, "authorization", who)
		}
		_, unary := client.videos.ListVideos(called, &videov1.ListVideosRequest{})
		stream, err := client.catalog.WatchCatalogEntries(called, &catalogv1.WatchCatalogEntriesRequest{ResumeToken: "nonsense"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if (unary != nil) != (who == "stranger@example.com") || err == nil {
			t.Errorf("%q: ListVideos() = %v, WatchCatalogEntries() = %v, want only the stranger's list refused, and no watch from nonsense", who, unary, err)
		}
		want = append(want, who, who)
	}

	var got []string
	for text := range strings.Lines(out.String()) {
		var line struct{ Msg, Caller string }
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line.Msg != "server: request" {
			continue
		}
		if strings.HasSuffix(line.Caller, ", 198.51.100.1") && len(line.Caller) == 200 {
			line.Caller = ""
		}
		got = append(got, line.Caller)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("callers, empty for the end of the addresses (-want +got):\n%s", diff)
	}
}

// A call over gRPC and one over REST are a span each, in the trace of their
// caller, and counted, by method and code.
func TestCallsAreObserved(t *testing.T) {
	t.Parallel()
	spans, reader := tracetest.NewInMemoryExporter(), sdkmetric.NewManualReader()
	r := start(t, port.Config{}, func(d *deps) {
		d.Tracing = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
		d.Metrics = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	})
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	const traceparent = "00-" + traceID + "-" + spanID + "-01"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+"/v1/videos/none", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("traceparent", traceparent)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	client := r.grpcClient(t)
	for _, ctx := range []context.Context{t.Context(), metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent)} {
		if _, err := client.videos.ListVideos(ctx, &videov1.ListVideosRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, span := range spans.GetSpans() {
		got = append(got, fmt.Sprintf("%s %s in %s under %s", span.Name, span.SpanKind, span.SpanContext.TraceID(), span.Parent.SpanID()))
	}
	slices.Sort(got) // a span may end after the answer
	want := []string{
		"video.v1.VideoService/GetVideo server in " + traceID + " under " + spanID,
		"video.v1.VideoService/ListVideos server in " + traceID + " under " + spanID,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	calls := histogram[float64](t, reader, "rpc.server.call.duration")
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
	if diff := cmp.Diff(map[string]uint64{"video.v1.VideoService/GetVideo INVALID_ARGUMENT": 1, "video.v1.VideoService/ListVideos OK": 2}, counts); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// What ends before a method has its message is no call: over REST it is a line
// nevertheless, without path and query and by few methods, and over gRPC it is
// not; and it is not counted, but for a message that cannot be read.
func TestWhatIsNoCallIsLoggedOverREST(t *testing.T) {
	t.Parallel()
	var out logBuffer
	reader := sdkmetric.NewManualReader()
	r := start(t, port.Config{}, func(d *deps) {
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
		"/video.v1.VideoService/Nothing": codes.Unimplemented, "/nobody.v1.NoService/Nothing": codes.Unimplemented,
		"/video.v1.VideoService/GetVideo": codes.InvalidArgument, // the name is not UTF-8
	} {
		if err := conn.Invoke(t.Context(), method, wrapperspb.Bytes([]byte{0xff}), new(videov1.Video)); status.Code(err) != want {
			t.Errorf("%s = %v, want %s", method, err, want)
		}
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	lines := make(map[string]int)
	for text := range strings.Lines(out.String()) {
		var line struct {
			Msg, Method, Code, Caller string
			XRequestID                string  `json:"x_request_id"`
			LatencyMS                 float64 `json:"latency_ms"`
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil || line.LatencyMS <= 0 || strings.Contains(strings.ToLower(text), "secret") {
			t.Errorf("line = %s, %v, want a latency and no secret", text, err)
		}
		caller, _, _ := strings.Cut(line.Caller, ":") // without the port
		lines[strings.Join([]string{line.Msg, line.Method, line.Code, caller, line.XRequestID}, "|")]++
	}
	const who = "|203.0.113.7, 127.0.0.1|abc"
	if diff := cmp.Diff(map[string]int{
		"server: request|REST GET|NotFound" + who: 1, "server: request|REST GET|InvalidArgument" + who: 2, "server: request|REST POST|InvalidArgument" + who: 1,
		"server: request|/video.v1.VideoService/GetVideo|InvalidArgument|127.0.0.1|": 1,
		"server: request|REST PUT|Unimplemented" + who:                               1, "server: request|REST|Unimplemented" + who: 1,
	}, lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	var got []string
	for _, point := range histogram[float64](t, reader, "rpc.server.call.duration").DataPoints {
		method, _ := point.Attributes.Value("rpc.method")
		code, _ := point.Attributes.Value("rpc.response.status_code")
		got = append(got, fmt.Sprintf("%s %s %d", method.AsString(), code.AsString(), point.Count))
	}
	if diff := cmp.Diff([]string{"video.v1.VideoService/GetVideo INVALID_ARGUMENT 1"}, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// A handler is in the trace of its caller, whoever of us records it, over REST
// and in streams too; a caller without one begins none.
func TestCallsStayInTheTraceOfTheirCaller(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*deps){
		"nothing is recorded": func(*deps) {},
		"metrics are": func(d *deps) {
			d.Metrics = sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
		},
		"spans are": func(d *deps) { d.Tracing = sdktrace.NewTracerProvider() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, port.Config{}, change)
			calls, watches := make(chan trace.SpanContext, 10), make(chan trace.SpanContext, 1000)
			r.store.before = func(ctx context.Context, method string) error {
				in := calls
				if method == "ListChanges" { // which a watch reads now and then
					in = watches
				}
				in <- trace.SpanContextFromContext(ctx)
				return nil
			}
			const traceID = "0af7651916cd43dd8448eb211c80319c"
			const traceparent = "00-" + traceID + "-b7ad6b7169203331-01"
			check := func(call, want string) {
				t.Helper()
				if got := <-calls; got.TraceID().String() != want || !got.IsSampled() {
					t.Errorf("%s: in trace %s, sampled %t, want %s, true", call, got.TraceID(), got.IsSampled(), want)
				}
			}
			ask(t, r, http.MethodGet, "/v1/videos", "", "traceparent", traceparent)
			check("REST", traceID)
			client := r.grpcClient(t)
			ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent)
			if _, err := client.videos.ListVideos(ctx, &videov1.ListVideosRequest{}); err != nil {
				t.Fatal(err)
			}
			check("gRPC", traceID)
			next(t, watchFrom(t, client, "")) // without a trace
			watch, err := client.catalog.WatchCatalogEntries(ctx, &catalogv1.WatchCatalogEntriesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			next(t, watch)
			for got, late := (trace.SpanContext{}), time.After(patience); got.TraceID().String() != traceID || !got.IsSampled(); {
				select {
				case got = <-watches: // of either
				case <-late:
					t.Fatal("no read of a stream was in the trace of its caller")
				}
			}
			if name == "spans are" {
				return // then one begins here
			}
			for _, none := range []string{"", "nonsense"} {
				if _, err := client.videos.ListVideos(metadata.AppendToOutgoingContext(t.Context(), "traceparent", none), &videov1.ListVideosRequest{}); err != nil {
					t.Fatal(err)
				}
				if got := <-calls; got.IsValid() {
					t.Errorf("traceparent %q: in trace %s, want none", none, got.TraceID())
				}
			}
		})
	}
}

// Calls that are refused before anybody has looked at them are counted, calls
// and streams apart, from nought on, and told.
func TestRefusedCallsAreObserved(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	r := start(t, port.Config{MaxCalls: 2}, func(d *deps) { d.Metrics = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)) })
	counts := func() map[string]int64 {
		got := make(map[string]int64)
		var data metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &data); err != nil {
			t.Fatal(err)
		}
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
	if diff := cmp.Diff(map[string]int64{"call": 0, "stream": 0}, counts()); diff != "" {
		t.Errorf("refused, before there was a call (-want +got):\n%s", diff)
	}
	overGRPC := r.grpcClient(t)
	next(t, watchFrom(t, overGRPC, ""))
	entered, release := hang(r)
	results := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := overGRPC.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()})
			results <- err
		}()
		<-entered
	}
	for name, c := range map[string]client{"gRPC": overGRPC, "REST": r.restClient(t, false)} {
		if _, err := c.videos.ListVideos(t.Context(), &videov1.ListVideosRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: a third call = %v, want Unavailable", name, err)
		}
		if _, err := watchFrom(t, c, "").Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: a second stream = %v, want Unavailable", name, err)
		}
	}
	release()
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(map[string]int64{"call": 2, "stream": 2}, counts()); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if log := r.log.String(); strings.Count(log, `msg="server: call refused, there are too many" kind=call most=2`) != 2 || strings.Count(log, "kind=stream most=1") != 2 {
		t.Errorf("log = %s, want a line for each of four", log)
	}
}

// What net/http says of connections has the address of the client in it, and
// is of one message nevertheless, so that it can be sampled.
func TestConnectionErrorsHaveOneMessage(t *testing.T) {
	t.Parallel()
	var out logBuffer
	r := start(t, port.Config{}, func(d *deps) { d.Log = slog.New(slog.NewJSONHandler(&out, nil)) })
	// Settings, which are empty, and data that belong to no stream (RFC 9113, 6.1).
	const broken = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	for range 2 {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, broken); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.Copy(io.Discard, conn) // until it is closed, which is after the line
		conn.Close()
	}
	for text := range strings.Lines(out.String()) {
		var line struct{ Msg, Err, Level string }
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line.Msg != "server: connection failed" || !strings.Contains(line.Err, "127.0.0.1:") || line.Level != "WARN" {
			t.Errorf("line = %s, want the address in err only", text)
		}
	}
	if got := strings.Count(out.String(), "\n"); got != 2 {
		t.Errorf("%d lines, want one per connection:\n%s", got, out.String())
	}
}

func histogram[N int64 | float64](t *testing.T, reader sdkmetric.Reader, name string) metricdata.Histogram[N] {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == name {
				return m.Data.(metricdata.Histogram[N])
			}
		}
	}
	t.Fatalf("there is no %s", name)
	return metricdata.Histogram[N]{}
}

// Whoever asks for a version tells how far the catalog is behind it.
func TestVersionLagIsMeasured(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	r := start(t, port.Config{}, func(d *deps) {
		d.catalogConfig.MaxWait, d.Metrics = 1, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	})
	const name = "catalogEntries/01890000-0000-7000-8000-000000000001"
	catalog := r.grpcClient(t).catalog
	for _, version := range []int64{0, 3} { // nobody has seen the video
		if _, err := catalog.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: name, MinVersion: version}); err == nil {
			t.Error("GetCatalogEntry() = nil, want an error")
		}
	}
	lag := histogram[int64](t, reader, "catalog.version.lag")
	if got := lag.DataPoints[0]; got.Count != 1 || got.Sum != 3 {
		t.Errorf("lag = %d times, %d in all, want once 3", got.Count, got.Sum)
	}
	if got := histogram[float64](t, reader, "catalog.version.wait").DataPoints[0]; got.Count != 1 {
		t.Errorf("waited %d times, want once", got.Count)
	}
}

// A process that is stuck fails the check for being live, and only that one.
func TestStuckIsNotLive(t *testing.T) {
	t.Parallel()
	var stuck atomic.Bool
	r := start(t, port.Config{}, func(d *deps) {
		d.Live = func() error {
			if stuck.Load() {
				return errors.New("outbox: worker 0 has not come by")
			}
			return nil
		}
	})
	health := func(path string) int {
		response, err := http.Get("http://" + r.addr + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	if got := health("/health/live"); got != http.StatusOK {
		t.Errorf("/health/live = %d, want 200", got)
	}
	stuck.Store(true)
	if live, ready := health("/health/live"), health("/health/ready"); live != http.StatusServiceUnavailable || ready != http.StatusOK {
		t.Errorf("stuck: /health/live = %d, /health/ready = %d, want 503 and 200", live, ready)
	}
	if !strings.Contains(r.log.String(), "worker 0 has not come by") {
		t.Errorf("the log does not say who is stuck: %s", r.log.String())
	}
}
