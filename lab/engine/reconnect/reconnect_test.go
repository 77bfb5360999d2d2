package reconnect_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/reconnect"
)

// server is a gRPC server with default settings, behind a network that a test can break.
type server struct {
	*network
	says   *health.Server
	client grpc_health_v1.HealthClient
}

// withServer runs a test with a server in a bubble of synctest.
func withServer(t *testing.T, test func(t *testing.T, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{network: newNetwork(), says: health.NewServer()}
		serves := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(serves, s.says)
		defer s.Serve(serves)()
		options := append(reconnect.DialOptions(), s.Dial(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		conn, err := grpc.NewClient("passthrough:///server", options...)
		pgtest.Must(t, err)
		defer conn.Close()
		s.client = grpc_health_v1.NewHealthClient(conn)
		test(t, s)
	})
}

// call makes a call that takes a second at most.
func (s *server) call(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := s.client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// However long a server was unavailable, it is called again soon after its return.
func TestServerThatWasAwayIsFound(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.Refuse(true)
		for range 30 {
			if err := s.call(t.Context()); err == nil {
				t.Error("a call while the server is unavailable = nil, want an error")
			}
			time.Sleep(time.Minute)
		}
		s.Refuse(false)
		time.Sleep(2 * time.Second)
		if err := s.call(t.Context()); err != nil {
			t.Errorf("a call 2 s after the return = %v, want nil", err)
		}
	})
}

// If a connection becomes silent, an idle stream on it ends, and the next calls use a new
// connection.
func TestSilentConnectionIsReplaced(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		stream, err := s.client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		pgtest.Must(t, err)
		_, err = stream.Recv()
		pgtest.Must(t, err)
		s.Silence()
		cut := time.Now()
		if err := s.call(t.Context()); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a call over a connection that was cut = %v, want DeadlineExceeded", err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || time.Since(cut) > 41*time.Second {
			t.Errorf("the stream over it ended after %s with %v, want Unavailable within 40 s", time.Since(cut), err)
		}
		if err := s.call(t.Context()); err != nil {
			t.Errorf("the next call = %v, want nil", err)
		}
	})
}

// A server with gRPC's default policy does not end the connection for the pings,
// however often it is called, and while it sends on a stream every 30 s.
func TestServerToleratesPings(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		for _, pause := range []time.Duration{time.Second, 29 * time.Second, 31 * time.Second, time.Minute, 4 * time.Minute} {
			for range 20 {
				if err := s.call(t.Context()); err != nil {
					t.Errorf("a call every %s = %v, want nil", pause, err)
				}
				time.Sleep(pause)
			}
		}
		stream, err := s.client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		pgtest.Must(t, err)
		for n := range int32(100) {
			if _, err := stream.Recv(); err != nil {
				t.Fatalf("the stream after %d minutes: %v", n/2, err)
			}
			time.Sleep(30 * time.Second)
			s.says.SetServingStatus("", grpc_health_v1.HealthCheckResponse_ServingStatus(2-n%2)) // another one than before
		}
		if n := s.Attempts(); n != 1 {
			t.Errorf("connections = %d, want 1", n)
		}
	})
}
