// Package pubsublocal is a Google Cloud Pub/Sub server in a Go process, as strict as the real one, for development and
// tests. It speaks google.pubsub.v1 (Publisher, Subscriber, SchemaService) and google.iam.v1 over gRPC, and the same over
// HTTP/JSON on the same port, so that client libraries of any language and gcloud work against it.
//
// # What it promises
//
// Its behavior is that of Google's documentation, as numbered sentences, each with its case in package conformance: ordering keys with the
// redelivery of all that follows a failed message, leases, flow control, retry policies, dead letters, exactly-once
// delivery, retention, seek, snapshots, filters, protobuf schemas, limits and error codes. Package conformance has a case
// for each, which runs against this server, Google's emulator and the service itself. Where the service is free to do
// several things, such as to deliver twice, this server does not do so by itself; a [Fault] makes it.
//
// Nothing polls: a message is on its way to a subscriber within microseconds of its publication. Time is a [Clock], which
// tests can move. Close leaves no goroutine and no memory.
//
// # What it does not do
//
//   - Push delivery: the configuration is kept, nothing is pushed.
//   - BigQuery, Cloud Storage and Bigtable subscriptions, ingestion, message transforms, tags, AVRO schemas and compiled
//     protobuf schemas: Unimplemented, naming the field.
//   - Policies of IAM are kept, and not enforced. Encryption keys and storage regions have no effect.
//   - Quotas, throttling, several regions, monitoring.
//
// # Memory
//
// A message of 1 KB takes about 1.5 KB while a subscription, a snapshot or the retention of its topic needs it, and
// nothing afterwards. How much may pile up is not bounded, except by retention; the collector lets the heap grow to twice
// what is live unless debug.SetMemoryLimit says otherwise, which is the process's to decide (cmd/pubsublocal has --memory).
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

	"cloud.google.com/go/iam/apiv1/iampb"
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

// Config says how the server runs. Its zero value is fine for tests.
type Config struct {
	// Addr is the TCP address. Default: 127.0.0.1 and a free port.
	Addr string
	// InMemory lets the server listen nowhere; Conn and Options connect to it all the same.
	InMemory bool
	// DataDir keeps everything over a restart, except leases, counts of attempts and IAM policies. Empty: nothing is kept.
	DataDir string
	// Sync says when what is written to DataDir is safe. Default: SyncBatch.
	Sync Sync
	// Admin turns on the HTTP endpoint for faults, under /admin/.
	Admin bool
	// Clock is the time of the server, which a test may move. Default: a clock of its own.
	Clock *Clock
	// StreamLifetime is when a StreamingPull ends by itself. Default: 30 minutes.
	StreamLifetime time.Duration
	// Observer is told what happens to messages. It is called in the order of events, with locks held: it must neither
	// block nor call the server. Default: nobody.
	Observer func(Event)
	// Log gets what an operator wants to know. Default: nobody does.
	Log *slog.Logger
}

// Server is a running server. Its methods may be called from several goroutines.
type Server struct {
	clock          *Clock
	streamLifetime time.Duration
	observer       func(Event)
	log            *slog.Logger
	journal        *journal
	schemas        *schemaRegistry
	policies       *iamPolicies
	faults         *faults

	mu            sync.Mutex // held while resources are created, changed and deleted; before any other lock
	topics        registry[topic]
	subscriptions registry[subscription]
	snapshots     registry[snapshot]

	lastID        atomic.Uint64 // of messages
	lastMark      atomic.Uint32 // of subscriptions
	noDeadLetters atomic.Bool

	listener *breakableListener
	dial     func(context.Context, string) (net.Conn, error) // nil: TCP
	grpc     *grpc.Server
	http     *http.Server
	serving  sync.WaitGroup
}

// Start starts a server. An error says what is wrong with the address or the data.
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
	s.policies = newIAMPolicies(s.exists)
	s.faults = newFaults(s.clock)
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
	if err := s.serve(base, cfg.Admin); err != nil {
		return nil, errors.Join(err, base.Close(), s.journal.close())
	}
	return s, nil
}

// serve returns gRPC and HTTP on a listener, until Close.
func (s *Server) serve(base net.Listener, admin bool) error {
	// The largest request that is answered at all; the service's own limits are below, and say so. [B3]
	const maxRequest = 64 << 20
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxRequest),
		grpc.WaitForHandlers(true), grpc.MaxConcurrentStreams(100_000), grpc.InitialConnWindowSize(4<<20), grpc.InitialWindowSize(1<<20),
		grpc.ChainUnaryInterceptor(s.faults.unary), grpc.ChainStreamInterceptor(s.faults.stream))
	pubsubpb.RegisterPublisherServer(s.grpc, &publisherService{server: s})
	pubsubpb.RegisterSubscriberServer(s.grpc, &subscriberService{server: s})
	pubsubpb.RegisterSchemaServiceServer(s.grpc, s.schemas)
	iampb.RegisterIAMPolicyServer(s.grpc, s.policies)
	healthpb.RegisterHealthServer(s.grpc, health.NewServer())
	reflection.Register(s.grpc)
	var adminHandler http.Handler
	if admin {
		adminHandler = newAdminHandler(s, s.faults)
	}
	handler, err := newHTTPHandler(s.grpc, adminHandler)
	if err != nil {
		return err
	}
	s.http = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	s.listener = &breakableListener{Listener: base}
	grpcListener, httpListener := splitListener(s.listener)
	s.serving.Go(func() { _ = s.grpc.Serve(grpcListener) }) // both end with Close
	s.serving.Go(func() { _ = s.http.Serve(httpListener) })
	return nil
}

// Close ends the server, and every connection to it.
func (s *Server) Close() error {
	err := s.listener.Close()
	err = errors.Join(err, s.http.Close())
	s.grpc.Stop() // it waits for calls, also for those over HTTP
	s.serving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.stop()
	return errors.Join(err, s.journal.close())
}

// Addr is where the server listens, in the form that PUBSUB_EMULATOR_HOST wants.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Conn makes a connection to the server, for option.WithGRPCConn. The caller
// closes it; a Pub/Sub client does so with itself.
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
		// After an outage a client of a server on this machine need not wait for seconds.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			// Without it a busy machine has no more than BaseDelay to connect.
			MinConnectTimeout: 20 * time.Second,
		}),
	}
	if s.dial != nil {
		opts = append(opts, grpc.WithContextDialer(s.dial))
	}
	return opts
}

// Options are those of a client of this server.
func (s *Server) Options() []option.ClientOption {
	opts := []option.ClientOption{
		option.WithEndpoint("passthrough:///" + s.Addr()), option.WithoutAuthentication(), option.WithTelemetryDisabled(),
	}
	for _, o := range s.dialOptions() {
		opts = append(opts, option.WithGRPCDialOption(o))
	}
	return opts
}

// Client makes a client of this server. The caller closes it.
func (s *Server) Client(ctx context.Context, project string) (*pubsub.Client, error) {
	client, err := pubsub.NewClient(ctx, project, s.Options()...)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// Inject puts a fault into force until remove is called. Of several that concern a call the oldest counts.
func (s *Server) Inject(fault Fault) (remove func()) { return s.faults.add(fault) }

// SetDown starts or ends an outage: while it lasts every connection is broken, and each new one at once.
func (s *Server) SetDown(down bool) { s.listener.setDown(down) }

// CutConnections breaks every connection, and with it all streams. New ones are welcome.
func (s *Server) CutConnections() { s.listener.cutConnections() }

// CutStreams ends every StreamingPull with Unavailable.
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

// Duplicate lets the next count acknowledged messages of a subscription come again, as the service may do at any time
// without exactly-once delivery.
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

// SetDeadLetterRights gives the service the right to forward dead letters, or takes it away, as when its account lacks
// roles: then it counts no attempts and forwards nothing.
func (s *Server) SetDeadLetterRights(granted bool) { s.noDeadLetters.Store(!granted) }

// registry holds the resources of a kind by name. Reading it takes no lock.
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
		names = append(names, name.(string)) //nolint:forcetypeassert // set takes nothing else
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

// named is what list lists.
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

// schemaChanged is called with the lock of the schemas held.
func (s *Server) schemaChanged(name string, revisions []*pubsubpb.Schema) {
	s.journal.schema(name, revisions)
	if len(revisions) > 0 {
		return
	}
	for _, t := range s.topics.all() {
		t.forgetSchema(name)
	}
	s.policies.forget(name)
}

// exists tells whether there is a resource of any kind with this name.
func (s *Server) exists(name string) bool {
	return s.topics.get(name) != nil || s.subscriptions.get(name) != nil || s.snapshots.get(name) != nil || s.schemas.exists(name)
}
