// Package localpubsub starts a Pub/Sub server in this process, for cmd/dev and the tests, and creates the topics and
// subscriptions of the service in it or in any other server.
//
// It is the one seam behind which that server stands: nothing else may import a Pub/Sub double. Today it is the fake
// of the client library (cloud.google.com/go/pubsub/v2/pstest, v2.8.1), served by a gRPC server and a listener of
// ours, so that calls can fail, connections break and the whole broker go away.
//
// It promises:
//   - A server listens on the loopback interface only, and any number of servers run side by side: nothing is set in
//     the environment.
//   - The real API: the client library speaks to it as to the real service, over TCP.
//   - A fault is in force when the call that asks for it returns.
//   - When a stream ends, also because its connection broke, what was outstanding on it is delivered again at once;
//     under exactly-once delivery not before its deadline.
//   - Close ends every connection and goroutine of the server.
//
// It does not keep anything: messages are in memory until Close.
//
// What tests must not rely on, because this fake does otherwise than the real service:
//   - Speed: every 10 ms it delivers at most one message of a key, and the next of that key after the ack, which the
//     client sends every 100 ms. That is about 90 messages a second, 10 of one key.
//   - Order: messages of one key published in the same instant may change places.
//   - The retry policy: a nacked message comes back at once.
//   - A late ack: one that comes after the end of the stream that delivered the message counts for nothing.
//   - Dead letters: a message that is due is copied to the dead-letter topic every 10 ms for ever, without the
//     attributes that say where it came from.
//   - Exactly-once: old and invented ack ids succeed. Only the flag is handed out.
//   - Seek to the past panics, schemas are stored and not looked at, snapshots do not exist, and limits of sizes are
//     not checked.
//
// It is not for production: cmd/server must not import it.
package localpubsub

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// maxRequestBytes is a little more than the largest request that the real service takes, 10 MB.
const maxRequestBytes = 11 << 20

// Config says where the server listens. Its zero value is fine for tests.
type Config struct {
	// Addr is the TCP address. Default: 127.0.0.1 and a free port.
	Addr string
}

// Server is a running server. Its methods may be called from several goroutines.
type Server struct {
	fake     *pstest.Server
	grpc     *grpc.Server
	listener *listener
	served   chan struct{} // closed when the gRPC server has ended
	faults   faults
	leases   leases

	reading sync.Mutex // held while the fake fills in its counts
}

// Start starts a server.
func Start(cfg Config) (_ *Server, err error) {
	addr := cfg.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer func() {
		// The fake opens a port of its own, which we do not use, and panics when it cannot.
		if v := recover(); v != nil {
			_ = tcp.Close() // nothing was accepted
			err = fmt.Errorf("start fake: %v", v)
		}
	}()
	s := &Server{
		fake:     pstest.NewServer(),
		listener: &listener{Listener: tcp, conns: map[net.Conn]struct{}{}},
		served:   make(chan struct{}),
	}
	s.leases = leases{fake: &s.fake.GServer, lent: map[lease]*lender{}, nacks: map[string]int{}}
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxSendMsgSize(maxRequestBytes),
		grpc.ChainUnaryInterceptor(s.faults.unary, s.leases.unary),
		grpc.ChainStreamInterceptor(s.faults.stream, s.leases.stream))
	pubsubpb.RegisterPublisherServer(s.grpc, &s.fake.GServer)
	pubsubpb.RegisterSubscriberServer(s.grpc, &s.fake.GServer)
	pubsubpb.RegisterSchemaServiceServer(s.grpc, &s.fake.GServer)
	go func() {
		defer close(s.served)
		_ = s.grpc.Serve(s.listener) // it ends when Close closes the listener
	}()
	return s, nil
}

// Close ends the server. Clients of it are left alone; they find nobody.
func (s *Server) Close() error {
	s.grpc.Stop()
	<-s.served
	return s.fake.Close()
}

// Addr is where the server listens, in the form that PUBSUB_EMULATOR_HOST wants.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Options are those of a client of this server.
func (s *Server) Options() []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint(s.Addr()),
		option.WithoutAuthentication(),
		option.WithTelemetryDisabled(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		// After an outage a client of a server on this machine need not wait for seconds.
		option.WithGRPCDialOption(grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
		})),
	}
}

// Client makes a client of this server. The caller closes it.
func (s *Server) Client(ctx context.Context, project string) (*pubsub.Client, error) {
	client, err := pubsub.NewClient(ctx, project, s.Options()...)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// Message is a message as the server has it.
type Message struct {
	ID          string
	Topic       string // full name
	OrderingKey string
	Attributes  map[string]string
	Data        []byte
	PublishTime time.Time
	// Of all subscriptions together: how often it was delivered, acknowledged and nacked.
	Deliveries, Acks, Nacks int
}

// Published answers all messages that were ever published, in the order in which they reached the server.
func (s *Server) Published() []Message {
	s.reading.Lock()
	defer s.reading.Unlock()
	var messages []Message
	for _, m := range s.fake.Messages() {
		messages = append(messages, Message{
			ID: m.ID, Topic: m.Topic, OrderingKey: m.OrderingKey, Attributes: m.Attributes, Data: slices.Clone(m.Data),
			PublishTime: m.PublishTime.UTC(), Deliveries: m.Deliveries, Acks: m.Acks, Nacks: s.leases.nackCount(m.ID),
		})
	}
	return messages
}
