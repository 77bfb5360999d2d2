package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/api"
	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/port"
)

// running is a server that really listens, over a store in memory.
type running struct {
	server  *port.Server
	catalog *catalogService
	store   *fakeStore
	addr    string
	log     *logBuffer
	stop    context.CancelFunc
	done    chan error // gets what Run returns

	mu    sync.Mutex
	admit func(ctx context.Context, method string) (string, error) // guarded by mu; nil: all
}

// deps are what a test may change before its server is made.
type deps struct {
	port.Deps
	videos        VideoStore
	entries       CatalogStore // nil: the server has no handlers
	catalogConfig CatalogConfig
}

// start runs a server until the test ends.
func start(t testing.TB, cfg port.Config, change ...func(*deps)) *running {
	t.Helper()
	r := &running{store: newFakeStore(), log: new(logBuffer), done: make(chan error, 1)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = listener.Addr().String()
	deps := deps{videos: r.store, entries: r.store}
	deps.Log, deps.Listener, deps.OpenAPI = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelWarn})), listener, api.OpenAPI
	deps.Admit = func(ctx context.Context, method string) (string, error) {
		r.mu.Lock()
		admit := r.admit
		r.mu.Unlock()
		if admit == nil {
			return "", nil
		}
		return admit(ctx, method)
	}
	for _, f := range change {
		f(&deps)
	}
	server, catalog, err := newServer(cfg, deps, r.store)
	if err != nil {
		t.Fatal(err)
	}
	r.server, r.catalog = server, catalog
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		r.done <- server.Run(ctx)
		close(r.done)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-r.done; err != nil {
			t.Errorf("Run() = %v, want nil once ctx is done", err)
		}
	})
	return r
}

// newServer makes the server of both services.
func newServer(cfg port.Config, d deps, changes Changes) (*port.Server, *catalogService, error) {
	store := d.entries
	catalog, err := newCatalogService(d.catalogConfig, store, changes, d.Metrics)
	if err != nil {
		return nil, nil, err
	}
	d.Services = []port.Service{Videos(d.videos), catalogOf(catalog)}
	for i := range d.Services {
		if store == nil {
			d.Services[i].Handler = nil
		}
	}
	server, err := port.New(cfg, d.Deps)
	return server, catalog, err
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// client speaks the API over one transport.
type client struct {
	videos  videov1.VideoServiceClient
	catalog catalogv1.CatalogServiceClient
}

func (r *running) dial(t testing.TB, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+r.addr, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *running) grpcClient(t testing.TB, options ...grpc.DialOption) client {
	t.Helper()
	conn := r.dial(t, options...)
	return client{videov1.NewVideoServiceClient(conn), catalogv1.NewCatalogServiceClient(conn)}
}

// httpClient returns a client of its own for each test, of one protocol.
func httpClient(t testing.TB, http2 bool) *http.Client {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: &protocols, MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (r *running) restClient(t testing.TB, http2 bool) client {
	t.Helper()
	conn := &restConn{url: "http://" + r.addr, http: httpClient(t, http2)}
	return client{videov1.NewVideoServiceClient(conn), catalogv1.NewCatalogServiceClient(conn)}
}

// overAll runs a test over each transport, each with a server of its own.
func overAll(t *testing.T, cfg port.Config, test func(t *testing.T, r *running, c client), change ...func(*deps)) {
	t.Helper()
	for name, connect := range map[string]func(*testing.T, *running) client{
		"gRPC":            func(t *testing.T, r *running) client { t.Helper(); return r.grpcClient(t) },
		"REST over HTTP1": func(t *testing.T, r *running) client { t.Helper(); return r.restClient(t, false) },
		"REST over HTTP2": func(t *testing.T, r *running) client { t.Helper(); return r.restClient(t, true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, cfg, change...)
			test(t, r, connect(t, r))
		})
	}
}

// restConn makes the clients of the gRPC API speak REST, as a person would who
// read api/proto, so that one test covers both.
type restConn struct {
	url  string
	http *http.Client
}

func (c *restConn) Invoke(ctx context.Context, method string, request, reply any, _ ...grpc.CallOption) error {
	response, err := c.call(ctx, method, request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return statusOf(response, body)
	}
	return protojson.Unmarshal(body, reply.(proto.Message))
}

// statusOf reads an error, which must say the code of the response, and names the
// fields of violations as in proto.
func statusOf(response *http.Response, body []byte) error {
	var failed struct {
		Error struct {
			Code    int
			Status  string
			Message string
			Details []json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &failed); err != nil || failed.Error.Code != response.StatusCode && response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d with a body that is no error of it: %q", response.StatusCode, body)
	}
	st := &spb.Status{Code: code.Code_value[failed.Error.Status], Message: failed.Error.Message}
	for _, text := range failed.Error.Details {
		packed := new(anypb.Any)
		if err := protojson.Unmarshal(text, packed); err != nil {
			return fmt.Errorf("detail %s: %w", text, err)
		}
		if bad := new(errdetails.BadRequest); packed.UnmarshalTo(bad) == nil {
			for _, v := range bad.GetFieldViolations() {
				v.Field = regexp.MustCompile("[A-Z]").ReplaceAllStringFunc(v.GetField(), func(s string) string { return "_" + strings.ToLower(s) })
			}
			if err := packed.MarshalFrom(bad); err != nil {
				return err
			}
		}
		st.Details = append(st.Details, packed)
	}
	return status.FromProto(st).Err()
}

func (c *restConn) call(ctx context.Context, method string, request any) (*http.Response, error) {
	message := proto.Clone(request.(proto.Message)).ProtoReflect()
	fields := message.Descriptor().Fields()
	take := func(name protoreflect.Name) string {
		fd := fields.ByName(name)
		value := message.Get(fd).String()
		message.Clear(fd)
		return value
	}
	var verb, path string
	var body proto.Message
	switch _, name, _ := strings.Cut(method[1:], "/"); name {
	case "CreateVideo":
		verb, path, body = "POST", "videos", request.(*videov1.CreateVideoRequest).GetVideo()
		message.Clear(fields.ByName("video"))
	case "UpdateVideo":
		video := request.(*videov1.UpdateVideoRequest).GetVideo()
		verb, path, body = "PATCH", video.GetName(), video
		message.Clear(fields.ByName("video"))
	case "PublishVideo", "UnpublishVideo", "UndeleteVideo", "PurgeVideo":
		verb, path = "POST", take("name")+":"+strings.ToLower(strings.TrimSuffix(name, "Video"))
		body = proto.Clone(message.Interface())
		proto.Reset(message.Interface())
	case "DeleteVideo":
		verb, path = "DELETE", take("name")
	case "GetVideo", "GetCatalogEntry":
		verb, path = "GET", take("name")
	case "ListVideos":
		verb, path = "GET", "videos"
	case "ListCatalogEntries":
		verb, path = "GET", "catalogEntries"
	case "SearchCatalogEntries":
		verb, path = "GET", "catalogEntries:search"
	case "WatchCatalogEntries":
		verb, path = "GET", "catalogEntries:watch"
	}
	var text []byte
	if body != nil {
		var err error
		if text, err = protojson.Marshal(body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, verb, c.url+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	query := r.URL.Query()
	message.Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		text := value.String()
		if mask, ok := value.Interface().(protoreflect.Message); ok {
			text = strings.Join(mask.Interface().(*fieldmaskpb.FieldMask).GetPaths(), ",")
		}
		query.Set(fd.JSONName(), text)
		return true
	})
	r.URL.RawQuery = query.Encode()
	md, _ := metadata.FromOutgoingContext(ctx)
	for name, values := range md {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	return c.http.Do(r)
}

// NewStream is for WatchCatalogEntries only.
func (c *restConn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &restStream{ctx: ctx, conn: c, method: method}, nil
}

type restStream struct {
	grpc.ClientStream
	ctx     context.Context
	conn    *restConn
	method  string
	request any
	body    *lineReader
}

func (s *restStream) SendMsg(m any) error { s.request = m; return nil }

func (s *restStream) CloseSend() error {
	response, err := s.conn.call(s.ctx, s.method, s.request)
	if err != nil {
		return err
	}
	s.body = &lineReader{response: response}
	return nil
}

func (s *restStream) RecvMsg(m any) error {
	line, err := s.body.next()
	if err != nil {
		return err
	}
	if bytes.HasPrefix(line, []byte(`{"error":`)) {
		return statusOf(s.body.response, line)
	}
	text, ok := bytes.CutPrefix(line, []byte(`{"result":`))
	if !ok {
		return fmt.Errorf("neither result nor error: %q", line)
	}
	return protojson.Unmarshal(bytes.TrimSuffix(text, []byte("}")), m.(proto.Message))
}

type lineReader struct {
	response *http.Response
	rest     []byte
}

func (r *lineReader) next() ([]byte, error) {
	for {
		if line, rest, ok := bytes.Cut(r.rest, []byte("\n")); ok {
			r.rest = rest
			return line, nil
		}
		buffer := make([]byte, 32<<10)
		n, err := r.response.Body.Read(buffer)
		r.rest = append(r.rest, buffer[:n]...)
		if err != nil && n == 0 {
			return nil, errors.Join(err, r.response.Body.Close())
		}
	}
}

// violations returns the fields that a status says are wrong.
func violations(err error) []string {
	var fields []string
	for _, detail := range status.Convert(err).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	return fields
}
