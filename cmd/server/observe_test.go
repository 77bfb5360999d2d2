package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/pg/pgtest"
)

// collector is where a server sends its spans.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	url string

	mu    sync.Mutex
	spans []*tracepb.Span // guarded by mu
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	c := &collector{url: "http://" + listener.Addr().String()}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *collector) Export(_ context.Context, request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// traces returns the spans of each trace, by its id.
func (c *collector) traces() map[string][]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	traces := make(map[string][]*tracepb.Span)
	for _, span := range c.spans {
		id := hex.EncodeToString(span.GetTraceId())
		traces[id] = append(traces[id], span)
	}
	return traces
}

// paths returns each span of a trace with its parents: "outermost > … > span".
func paths(spans []*tracepb.Span) []string {
	byID := make(map[string]*tracepb.Span)
	for _, span := range spans {
		byID[string(span.GetSpanId())] = span
	}
	var all []string
	for _, span := range spans {
		path := span.GetName()
		for parent := byID[string(span.GetParentSpanId())]; parent != nil; parent = byID[string(parent.GetParentSpanId())] {
			path = parent.GetName() + " > " + path
		}
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

// One trace goes from the caller through the transaction, the outbox, the
// broker and the projector into the catalog. It is recorded only if the caller
// has sampled it.
func TestOneTraceFromCallToCatalog(t *testing.T) {
	t.Parallel()
	c, s := newCollector(t), newStack(t)
	p := s.start(t, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+c.url, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_TRACES_SAMPLER=parentbased_always_off")
	const rest, viaGRPC, unsampled = "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c", "2af7651916cd43dd8448eb211c80319c"
	traceparent := func(id, flags string) string { return "00-" + id + "-b7ad6b7169203331-" + flags }

	header := http.Header{"Content-Type": {"application/json"}, "Traceparent": {traceparent(rest, "01")}}
	_, body := send(t, http.MethodPost, "http://"+p.addr+"/v1/videos", `{"title":"Secret title"}`, header)
	var created struct{ Name string }
	if err := json.Unmarshal([]byte(body), &created); err != nil || created.Name == "" {
		t.Fatalf("POST /v1/videos = %s, %v", body, err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent(viaGRPC, "01"))
	_, err := p.videos().PublishVideo(ctx, &videov1.PublishVideoRequest{Name: created.Name})
	must(t, err)
	ctx = metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent(unsampled, "00"))
	_, err = p.videos().UnpublishVideo(ctx, &videov1.UnpublishVideoRequest{Name: created.Name})
	must(t, err)
	_, err = p.videos().PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: created.Name})
	must(t, err)
	if _, err := p.catalog().GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{
		Name: strings.Replace(created.Name, "videos/", "catalogEntries/", 1), MinVersion: 4,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.stop(t); err != nil { // sends the last spans
		t.Fatal(err)
	}

	traces := c.traces()
	if len(traces) != 2 {
		t.Errorf("%d traces were recorded, want the two whose callers wanted them", len(traces))
	}
	for id, call := range map[string]struct{ method, command string }{
		rest: {"video.v1.VideoService/CreateVideo", "store.CreateVideo"}, viaGRPC: {"video.v1.VideoService/PublishVideo", "store.ChangeVideo"},
	} {
		got := paths(traces[id])
		transaction := call.method + " > " + call.command
		for _, want := range []string{
			call.method, transaction, transaction + " > outbox.publish",
			transaction + " > outbox.publish > consumer.process",
			transaction + " > outbox.publish > consumer.process > pg.Project",
		} {
			if !slices.Contains(got, want) {
				t.Errorf("trace %s has no %q, but\n\t%s", id, want, strings.Join(got, "\n\t"))
			}
		}
		if statement := transaction + " > batch start > COMMIT"; !slices.Contains(got, statement) {
			t.Errorf("trace %s has no %q, but\n\t%s", id, statement, strings.Join(got, "\n\t"))
		}
	}
	if text := fmt.Sprint(traces); strings.Contains(text, "ecret") {
		t.Error("the spans tell what the video says")
	}
	// The messages have the trace too, for consumers of other services, with the decision of each caller.
	var flags []string
	for _, message := range s.pubsub.Published() {
		if got := message.Attributes["traceparent"]; got != "" {
			flags = append(flags, got[3:6]+got[53:])
		} else {
			flags = append(flags, "none")
		}
	}
	// The last call had no trace: the server began one, which is not sampled.
	if len(flags) != 4 || flags[0] != "0af01" || flags[1] != "1af01" || flags[2] != "2af00" || !strings.HasSuffix(flags[3], "00") {
		t.Errorf("traces in the messages = %q, want 0af01, 1af01, 2af00, and a new one with 00", flags)
	}
}

// The trace of a caller is stored, and goes with the event to the consumers of other
// services, even if telemetry is off here. For a call without a trace the service begins
// none while its own tracing is off.
func TestTraceOfTheCallerGoesWithTheEvent(t *testing.T) {
	t.Parallel()
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, extra := range map[string][]string{"all off": nil, "metrics": {"TELEMETRY_ADDR=127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			p := s.start(t, extra...)
			for _, ctx := range []context.Context{metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent), t.Context()} {
				_, err := p.videos().CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
				must(t, err)
			}
			pgtest.WantCount(t, s.pool, 1, "events with the trace", "SELECT count(*) FROM video_catalog.outbox WHERE traceparent = $1", traceparent)
			pgtest.WantCount(t, s.pool, 0, "events with a trace that was begun here", "SELECT count(*) FROM video_catalog.outbox WHERE traceparent <> $1", traceparent)
			eventually(t, 10*time.Second, "both events are published", func() bool { return len(s.pubsub.Published()) == 2 })
			sent := make(map[string]int)
			for _, message := range s.pubsub.Published() {
				sent[message.Attributes["traceparent"]]++
			}
			if sent[traceparent] != 1 || sent[""] != 1 {
				t.Errorf("traces in the messages = %v, want that of the caller, and none", sent)
			}
			if _, err := p.stop(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// private returns the address of the private port, which it reads from the log.
func (p *process) private(t *testing.T) (addr string) {
	t.Helper()
	eventually(t, 10*time.Second, "the private port is open", func() bool {
		addr = p.addrOf("telemetry: private port open")
		return addr != ""
	})
	return addr
}

func get(t testing.TB, url string) (code int, body string) {
	t.Helper()
	return send(t, http.MethodGet, url, "", nil)
}

// labelsOf returns the labels that the service gives its metrics, over all series, by the
// metric's name in a scrape. It leaves out target_info, and the label le of histograms.
func labelsOf(scrape string) map[string][]string {
	label := regexp.MustCompile(`([a-zA-Z_]\w*)="(?:[^"\\]|\\.)*"`)
	labels := make(map[string][]string)
	var name, kind string
	for line := range strings.Lines(scrape) {
		if of, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ = strings.Cut(strings.TrimSpace(of), " ")
		}
		if strings.HasPrefix(line, "#") || name == "target_info" {
			continue
		}
		all := labels[name]
		for _, found := range label.FindAllStringSubmatch(line, -1) {
			if found[1] != "le" || kind != "histogram" {
				all = append(all, found[1])
			}
		}
		slices.Sort(all)
		labels[name] = slices.Compact(all)
	}
	return labels
}

// The private port has the metrics of all packages, each documented with its labels.
// The public port has neither metrics nor profiles.
func TestPrivatePortIsPrivate(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "TELEMETRY_ADDR=127.0.0.1:0")
	private := "http://" + p.private(t)
	video, err := p.videos().CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
	must(t, err)
	if video, err = p.videos().PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: video.GetName()}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.catalog().GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{
		Name: strings.Replace(video.GetName(), "videos/", "catalogEntries/", 1), MinVersion: video.GetVersion(),
	}); err != nil {
		t.Fatal(err)
	}
	// A call and a statement that fail may have labels of their own.
	for _, statement := range []string{"ALTER TABLE video_catalog.videos RENAME TO gone", "ALTER TABLE video_catalog.gone RENAME TO videos"} {
		pgtest.Execute(t, s.pool, statement)
		if _, err := p.videos().GetVideo(t.Context(), &videov1.GetVideoRequest{Name: video.GetName()}); (err != nil) != strings.HasSuffix(statement, "gone") {
			t.Errorf("GetVideo() after %s = %v", statement, err)
		}
	}
	all := []string{
		`error_type="INTERNAL"`,
		`outbox_events_total{outcome="published"} 2`, "outbox_publish_delay_seconds_count 2",
		"outbox_breaker_open 0", "outbox_partitions_ahead_days 7", `consumer_events_total{aggregate_type="video",outcome="applied"} 2`, `consumer_lag_seconds_count{aggregate_type="video"} 2`,
		"consumer_quarantine 0",
		`rpc_method="video.v1.VideoService/CreateVideo"`, `pgxpool_max_connections{db_client_connection_pool_name="commands"`, `pgxpool_max_connections{db_client_connection_pool_name="commands.calls"`, "go_goroutine_count",
		"db_client_operation_errors_total",
	}
	var metrics string
	var missing []string
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, metrics = get(t, private+"/metrics")
		missing = slices.DeleteFunc(slices.Clone(all), func(want string) bool { return strings.Contains(metrics, want) })
		if len(missing) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(missing) > 0 {
		t.Errorf("/metrics lacks %q", missing)
	}
	documented := make(map[string][]string) // the labels of metrics, by their names in Prometheus
	pages, err := filepath.Glob("../../options/*/README.md")
	var text strings.Builder
	for _, page := range append(pages, "../../deploy/observe/metrics.md") {
		content, readErr := os.ReadFile(page)
		text.Write(content)
		err = errors.Join(err, readErr)
	}
	must(t, err)
	for _, row := range regexp.MustCompile("(?m)^\\| `\\S+` \\| `(\\w+)` \\| \\w+ \\| [^|]* \\| ([^|]*) \\|").FindAllStringSubmatch(text.String(), -1) {
		documented[row[1]] = strings.FieldsFunc(strings.ReplaceAll(row[2], ".", "_"), func(r rune) bool { return r == ' ' || r == ',' })
		slices.Sort(documented[row[1]])
	}
	scraped := labelsOf(metrics)
	if len(scraped) < 30 {
		t.Errorf("%d metrics, want those of all packages", len(scraped))
	}
	for name, got := range scraped {
		want, ok := documented[name]
		if !ok {
			t.Errorf("%s is not in deploy/observe/metrics.md", name)
		} else if !slices.Equal(got, want) {
			t.Errorf("%s has the labels %q, want %q: attributesOf in deploy/observe/metrics_test.go", name, got, want)
		}
	}
	if strings.Contains(metrics, "127.0.0.1") || strings.Contains(metrics, video.GetName()[len("videos/"):]) {
		t.Error("a label has an address or an id")
	}

	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/heap"} {
		if code, _ := get(t, private+path); code != http.StatusOK {
			t.Errorf("GET %s on the private port = %d, want 200", path, code)
		}
		if code, _ := get(t, "http://"+p.addr+path); code != http.StatusNotFound {
			t.Errorf("GET %s on the public port = %d, want 404", path, code)
		}
	}
	if _, err := p.stop(t); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}
