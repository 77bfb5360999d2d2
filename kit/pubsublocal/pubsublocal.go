// Package pubsublocal is a Google Cloud Pub/Sub server in a Go process, for development and tests. It is as strict as
// the real service. It serves google.pubsub.v1 (Publisher, Subscriber, SchemaService) over gRPC, and the same over
// HTTP/JSON on the same port. Client libraries of any language and gcloud work with it.
//
// # What it guarantees
//
// It does what Google's documentation says about ordering keys, leases, flow control, retry policies, dead letters,
// exactly-once delivery, retention, seek, snapshots, filters, protobuf schemas, limits and error codes. This is a list
// of numbered sentences with a test case for each. The cases run against this server, Google's emulator and the service
// itself. A number in a comment, such as [H5], refers to a sentence.
//
// The service may, for example, deliver a message twice. In this server, only a [Fault] causes such behavior.
//
// The server does not poll: it sends a message to a subscriber within microseconds after it was published. Its time is
// a [Clock], which tests can move. Close leaves no goroutine and no memory.
//
// # What it does not do
//
//   - Push delivery: it stores the configuration, and pushes nothing.
//   - BigQuery, Cloud Storage and Bigtable subscriptions, ingestion, message transforms, tags, AVRO schemas and compiled
//     protobuf schemas: it returns Unimplemented with the name of the field.
//   - IAM: every caller may do everything, and there are no policies.
//   - Encryption keys and storage regions have no effect.
//   - Quotas, throttling, several regions, monitoring.
//
// # Memory
//
// A message of 1 KB takes about 1.5 KB while a subscription, a snapshot or the retention of its topic needs it. Only
// retention limits how many messages are kept. The garbage collector lets the heap grow to twice the live data, unless
// the process calls debug.SetMemoryLimit.
//
// It is not for production.
package pubsublocal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/test/bufconn"
)

// Config configures a server. Its zero value works for tests.
type Config struct {
	// Addr is the TCP address. Default: 127.0.0.1 and a free port.
	Addr string
	// InMemory makes the server listen on no address. Conn and Options still connect to it.
	InMemory bool
	// AllowedHosts are the host names by which clients may reach the server, beside localhost and IP addresses. "*" is
	// any. Clients with another name in Host or :authority get PERMISSION_DENIED, so that a web page cannot use the
	// server by DNS rebinding. Default: none. InMemory accepts any.
	AllowedHosts []string
	// DataDir is a directory that keeps the data over a restart, except leases and counts of attempts. Empty: nothing is kept.
	DataDir string
	// Clock is the time of the server. A test can move it. Default: a new clock.
	Clock *Clock
	// StreamLifetime is the time after which the server ends a StreamingPull. Default: 30 minutes.
	StreamLifetime time.Duration
	// Observer is called for each [Event], in order. Locks are held, so it must neither block nor call the server.
	// Default: none.
	Observer func(Event)
	// Log receives warnings and errors for an operator. Default: they are discarded.
	Log *slog.Logger
}

// Server is a running server. Its methods are safe for concurrent use.
type Server struct {
	clock          *Clock
	streamLifetime time.Duration
	observer       func(Event)
	log            *slog.Logger
	journal        *journal
	schemas        *schemaRegistry
	faults         *faults

	mu            sync.Mutex // held while resources are created, changed and deleted; locked before any other lock
	topics        registry[topic]
	subscriptions registry[subscription]
	snapshots     registry[snapshot]

	lastID        atomic.Uint64 // id of the newest message
	lastMark      atomic.Uint32 // mark of the newest subscription
	noDeadLetters atomic.Bool

	listener *breakableListener
	dial     func(context.Context, string) (net.Conn, error) // nil: TCP
	grpc     *grpc.Server
	http     *http.Server
	serving  sync.WaitGroup
}

// Start starts a server. It returns an error if it cannot listen on the address or cannot use the data in DataDir.
func Start(cfg Config) (*Server, error) {
	s := &Server{clock: cfg.Clock, streamLifetime: cfg.StreamLifetime, observer: cfg.Observer, log: cfg.Log}
	if s.clock == nil {
		s.clock = &Clock{}
	}
	if s.streamLifetime == 0 {
		s.streamLifetime = 30 * time.Minute
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.schemas = newSchemaRegistry(s.clock.Now)
	s.schemas.onChange = s.schemaChanged
	s.faults = newFaults(s.clock)
	if cfg.InMemory {
		cfg.AllowedHosts = []string{"*"}
	}
	guard, err := newGuard(cfg.AllowedHosts)
	if err != nil {
		return nil, err
	}
	var base net.Listener
	if cfg.InMemory {
		memory := bufconn.Listen(1 << 20)
		base, s.dial = memory, func(ctx context.Context, _ string) (net.Conn, error) { return memory.DialContext(ctx) }
	} else {
		addr := cfg.Addr
		if addr == "" {
			addr = "127.0.0.1:0"
		}
		tcp, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		base = tcp
	}
	if err := s.open(cfg); err != nil {
		return nil, errors.Join(err, base.Close())
	}
	if err := s.serve(base, guard); err != nil {
		return nil, errors.Join(err, base.Close(), s.journal.close())
	}
	return s, nil
}

// serve starts to serve gRPC and HTTP on a listener. Both end with Close.
func (s *Server) serve(base net.Listener, guard *guard) error {
	// Larger requests are not read at all. The limits of the service are lower, and have their own errors. [B3]
	const maxRequest = 64 << 20
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxRequest),
		grpc.WaitForHandlers(true), grpc.MaxConcurrentStreams(100_000), grpc.InitialConnWindowSize(4<<20), grpc.InitialWindowSize(1<<20),
		grpc.InTapHandle(guard.tap), grpc.ChainUnaryInterceptor(s.faults.unary), grpc.ChainStreamInterceptor(s.faults.stream))
	pubsubpb.RegisterPublisherServer(s.grpc, &publisherService{server: s})
	pubsubpb.RegisterSubscriberServer(s.grpc, &subscriberService{server: s})
	pubsubpb.RegisterSchemaServiceServer(s.grpc, s.schemas)
	healthpb.RegisterHealthServer(s.grpc, health.NewServer())
	reflection.Register(s.grpc)
	handler, err := newHTTPHandler(s.grpc)
	if err != nil {
		return err
	}
	s.http = &http.Server{Handler: guard.protect(handler), ReadHeaderTimeout: 10 * time.Second}
	s.listener = &breakableListener{Listener: base}
	grpcListener, httpListener := splitListener(s.listener)
	s.serving.Go(func() { _ = s.grpc.Serve(grpcListener) }) // returns after Close
	s.serving.Go(func() { _ = s.http.Serve(httpListener) })
	return nil
}

// Close stops the server, closes every connection to it, and waits for its goroutines.
func (s *Server) Close() error {
	err := s.listener.Close()
	err = errors.Join(err, s.http.Close())
	s.grpc.Stop() // waits for all calls, also for those over HTTP
	s.serving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.stop()
	return errors.Join(err, s.journal.close())
}

// Addr returns the address of the server, in the form of PUBSUB_EMULATOR_HOST.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Conn connects to the server, for option.WithGRPCConn. The caller closes the connection. If a Pub/Sub client uses it,
// closing the client is enough.
func (s *Server) Conn(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+s.Addr(), append(s.dialOptions(), opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

func (s *Server) dialOptions() []grpc.DialOption {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The default of gRPC waits for seconds after an outage. That is not needed for a server on this machine.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			// Without this, an attempt to connect has only BaseDelay, which is too short on a busy machine.
			MinConnectTimeout: 20 * time.Second,
		}),
	}
	if s.dial != nil {
		opts = append(opts, grpc.WithContextDialer(s.dial))
	}
	return opts
}

// Options returns the options that connect a client to this server.
func (s *Server) Options() []option.ClientOption {
	opts := []option.ClientOption{
		option.WithEndpoint("passthrough:///" + s.Addr()), option.WithoutAuthentication(), option.WithTelemetryDisabled(),
	}
	for _, o := range s.dialOptions() {
		opts = append(opts, option.WithGRPCDialOption(o))
	}
	return opts
}

// Client returns a client of this server. The caller closes it.
func (s *Server) Client(ctx context.Context, project string) (*pubsub.Client, error) {
	client, err := pubsub.NewClient(ctx, project, s.Options()...)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// Inject puts a fault in force until remove is called. If several faults match a call, the oldest one applies.
func (s *Server) Inject(fault Fault) (remove func()) { return s.faults.add(fault) }

// SetDown starts or ends an outage. During an outage, all connections and every new one are closed at once.
func (s *Server) SetDown(down bool) { s.listener.setDown(down) }

// CutConnections closes every connection, and thereby all streams. Clients can connect again at once.
func (s *Server) CutConnections() { s.listener.cutConnections() }

// CutStreams ends every StreamingPull with UNAVAILABLE.
func (s *Server) CutStreams() {
	for _, sub := range s.subscriptions.all() {
		sub.mu.Lock()
		for _, st := range sub.streams {
			if !st.pull {
				st.end(unavailable("The stream was cut by a fault."))
			}
		}
		sub.mu.Unlock()
	}
}

// Duplicate delivers the next count acknowledged messages of a subscription again. Without exactly-once delivery the
// service may deliver any message again.
func (s *Server) Duplicate(subscription string, count int) error {
	sub, err := s.subscription(subscription)
	if err != nil {
		return err
	}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	sub.duplicates += count
	return nil
}

// SetDeadLetterRights grants or revokes the right to forward dead letters. Without it, as when the service account
// lacks its roles, attempts are not counted and nothing is forwarded.
func (s *Server) SetDeadLetterRights(granted bool) { s.noDeadLetters.Store(!granted) }

// registry holds the resources of one kind, by name. Reads take no lock.
type registry[T any] struct{ m sync.Map }

func (r *registry[T]) get(name string) *T {
	v, _ := r.m.Load(name)
	found, _ := v.(*T)
	return found
}

func (r *registry[T]) set(name string, v *T) { r.m.Store(name, v) }
func (r *registry[T]) remove(name string)    { r.m.Delete(name) }

// all returns all resources, ordered by name.
func (r *registry[T]) all() []*T {
	var names []string
	r.m.Range(func(name, _ any) bool {
		names = append(names, name.(string)) //nolint:forcetypeassert // only set stores values
		return true
	})
	slices.Sort(names)
	var all []*T
	for _, name := range names {
		if v := r.get(name); v != nil {
			all = append(all, v)
		}
	}
	return all
}

// named is a resource that list can return.
type named[T any] interface {
	*T
	resourceName() string
}

// list returns a page of the resources of a project. [A9, A10]
func list[T any, P named[T]](r *registry[T], project string, size int32, token string) ([]P, string, error) {
	id, err := parseProject(project)
	if err != nil {
		return nil, "", err
	}
	var found []P
	for _, v := range r.all() {
		if strings.HasPrefix(P(v).resourceName(), "projects/"+id+"/") {
			found = append(found, P(v))
		}
	}
	return page(found, P.resourceName, size, token)
}

func (t *topic) resourceName() string        { return t.name }
func (s *subscription) resourceName() string { return s.name }
func (s *snapshot) resourceName() string     { return s.name }

func (s *Server) topic(name string) (*topic, error) {
	if t := s.topics.get(name); t != nil {
		return t, nil
	}
	return nil, notFound("topic", name)
}

func (s *Server) subscription(name string) (*subscription, error) {
	if sub := s.subscriptions.get(name); sub != nil {
		return sub, nil
	}
	return nil, notFound("subscription", name)
}

func (s *Server) snapshot(name string) (*snapshot, error) {
	if snap := s.snapshots.get(name); snap != nil {
		return snap, nil
	}
	return nil, notFound("snapshot", name)
}

// schemaChanged records a change of a schema. It is called with the lock of the schema registry held.
func (s *Server) schemaChanged(name string, revisions []*pubsubpb.Schema) {
	s.journal.schema(name, revisions)
	if len(revisions) > 0 {
		return
	}
	for _, t := range s.topics.all() {
		t.forgetSchema(name)
	}
}
