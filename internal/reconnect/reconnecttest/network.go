// Package reconnecttest gives a test a network between a gRPC client and a server
// that breaks as it is told. It works in the time of testing/synctest.
package reconnecttest

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// Network is a network in memory. Its methods may be called from several
// goroutines.
type Network struct {
	listener *bufconn.Listener
	away     atomic.Bool

	mu       sync.Mutex
	attempts int          // guarded by mu: to connect
	silent   *atomic.Bool // guarded by mu: of the newest connection
}

// New makes a network.
func New() *Network { return &Network{listener: bufconn.Listen(1 << 20)} }

// Serve lets a server answer who comes by the network, until it is stopped.
func (n *Network) Serve(server *grpc.Server) (stop func()) {
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(n.listener) }) // an error shows in the calls
	return func() {
		server.Stop()
		serving.Wait()
	}
}

// Dial lets a client connect by the network.
func (n *Network) Dial() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.attempts++
		if n.away.Load() {
			return nil, errors.New("refused")
		}
		conn, err := n.listener.DialContext(ctx)
		n.silent = new(atomic.Bool)
		return silentConn{conn, n.silent}, err
	})
}

// SetAway lets the network refuse connections, or no longer.
func (n *Network) SetAway(away bool) { n.away.Store(away) }

// Silence lets nothing through any more on the newest connection, which does not
// end.
func (n *Network) Silence() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent.Store(true)
}

// Attempts is how often a client tried to connect.
func (n *Network) Attempts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.attempts
}

// silentConn loses what is written to it when it is silent; so nothing comes
// back either.
type silentConn struct {
	net.Conn
	silent *atomic.Bool
}

func (c silentConn) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
