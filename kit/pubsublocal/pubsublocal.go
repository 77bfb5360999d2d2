// Package pubsublocal is a Google Cloud Pub/Sub server in a Go process, for development and tests. It is as strict as
// the real service. It serves google.pubsub.v1 (Publisher, Subscriber, SchemaService) over gRPC, to client libraries of
// any language.
//
// # What it guarantees
//
// It does what Google's documentation says about ordering keys, leases, flow control, retry policies, dead letters,
// retention, seek to a time, protobuf schemas, limits and error codes. Package conformance says this in numbered
// sentences, with a test case for each. A number in a comment, such as [H5], refers to a sentence.
//
// The service may, for example, deliver a message twice. In this server, only a [Fault] causes such behavior.
//
// The server does not poll: it sends a message to a subscriber within microseconds after it was published. Its time is
// a [Clock], which tests can move. Close leaves no goroutine and no memory.
//
// README.md lists what is not modeled. Such a method or field is Unimplemented.
//
// # Memory
//
// A message of 1 KB takes about 1.5 KB while a subscription or the retention of its topic needs it. Only retention
// limits how many messages are kept. The garbage collector lets the heap grow to twice the live data, unless the process
// calls debug.SetMemoryLimit.
//
// The server is not for production.
package pubsublocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Config configures a server. Its zero value works for tests.
type Config struct {
	// Addr is the TCP address. Default: 127.0.0.1 and a free port.
	Addr string
	// File keeps the data over a restart, except leases and counts of attempts. Only Close writes it: all changes since
	// Start are lost if the process ends without Close. Empty: nothing is kept.
	File string
	// Clock is the time of the server. A test can move it. Default: a new clock.
	Clock *Clock
	// Observer is called for each [Event], in order. Locks are held, so it must neither block nor call the server.
	// Default: none.
	Observer func(Event)
}

// Server is a running server. Its methods are safe for concurrent use.
type Server struct {
	clock    *Clock
	observer func(Event)
	file     string
	schemas  *schemaRegistry
	faults   *faults

	mu            sync.Mutex // held while resources are created, changed and deleted; locked before any other lock
	topics        registry[topic]
	subscriptions registry[subscription]

	lastID atomic.Uint64 // id of the newest message

	listener *breakableListener
	grpc     *grpc.Server
	serving  sync.WaitGroup
}

// Start starts a server. It returns an error if it cannot listen on the address or cannot read the file.
func Start(cfg Config) (*Server, error) {
	s := &Server{clock: cfg.Clock, observer: cfg.Observer, file: cfg.File}
	if s.clock == nil {
		s.clock = &Clock{}
	}
	s.schemas = newSchemaRegistry(s.clock.Now)
	s.schemas.onDelete = s.schemaDeleted
	s.faults = &faults{clock: s.clock}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", cmp.Or(cfg.Addr, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := s.load(); err != nil {
		s.clock.stop()
		return nil, errors.Join(err, listener.Close())
	}
	s.serve(listener)
	return s, nil
}

// serve starts to serve on a listener, until Close.
func (s *Server) serve(listener net.Listener) {
	// Larger requests are not read at all. The limits of the service are lower, and have their own errors. [B3]
	const maxRequest = 64 << 20
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxRequest),
		grpc.WaitForHandlers(true), grpc.MaxConcurrentStreams(100_000), grpc.InitialConnWindowSize(4<<20), grpc.InitialWindowSize(1<<20),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}), // a stream without a client would keep its keys
		grpc.ChainUnaryInterceptor(s.faults.unary), grpc.ChainStreamInterceptor(s.faults.stream))
	pubsubpb.RegisterPublisherServer(s.grpc, &publisherService{server: s})
	pubsubpb.RegisterSubscriberServer(s.grpc, &subscriberService{server: s})
	pubsubpb.RegisterSchemaServiceServer(s.grpc, s.schemas)
	s.listener = &breakableListener{Listener: listener}
	s.serving.Go(func() { _ = s.grpc.Serve(s.listener) }) // returns after Close
}

// Close stops the server, closes every connection to it, waits for its goroutines, and writes the file.
func (s *Server) Close() error {
	s.grpc.Stop() // waits for all calls
	s.serving.Wait()
	s.clock.stop()
	return s.save()
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
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The default of gRPC waits for seconds after an outage. That is not needed for a server on this machine.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			// Without this, an attempt to connect has only BaseDelay, which is too short on a busy machine.
			MinConnectTimeout: 20 * time.Second,
		}),
	}
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
	for _, sub := range s.subscriptions.all("") {
		sub.mu.Lock()
		for _, st := range sub.streams {
			if !st.pull {
				st.end(status.Error(codes.Unavailable, "The stream was cut by a fault."))
			}
		}
		sub.mu.Unlock()
	}
}

// Duplicate ignores the next count acks of a subscription, so their messages come again. The service may do the same.
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

// registry holds the resources of one kind, by name. Reads take no lock.
type registry[T any] struct{ m sync.Map }

func (r *registry[T]) get(name string) *T {
	v, _ := r.m.Load(name)
	found, _ := v.(*T)
	return found
}

func (r *registry[T]) set(name string, v *T) { r.m.Store(name, v) }
func (r *registry[T]) remove(name string)    { r.m.Delete(name) }

// all returns the resources whose names start with prefix, ordered by name.
func (r *registry[T]) all(prefix string) []*T {
	var names []string
	r.m.Range(func(key, _ any) bool {
		if name, _ := key.(string); strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
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

// in returns the resources of a project, ordered by name. [A9]
func (r *registry[T]) in(project string) ([]*T, error) {
	if err := checkProject(project); err != nil {
		return nil, err
	}
	return r.all(project + "/"), nil
}

func (s *Server) topic(name string) (*topic, error) {
	if t := s.topics.get(name); t != nil {
		return t, nil
	}
	return nil, notFound(name)
}

func (s *Server) subscription(name string) (*subscription, error) {
	if sub := s.subscriptions.get(name); sub != nil {
		return sub, nil
	}
	return nil, notFound(name)
}

// schemaDeleted removes a deleted schema from the topics. It is called with the lock of the schema registry held.
func (s *Server) schemaDeleted(name string) {
	for _, t := range s.topics.all("") {
		t.forgetSchema(name)
	}
}
