// Package reconnecttest provides an in-memory network between a gRPC client and
// a server, with failures that a test controls. It works inside
// testing/synctest.
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

// Network is an in-memory network. It is safe for concurrent use.
type Network struct {
	listener *bufconn.Listener
	away     atomic.Bool

	mu       sync.Mutex
	attempts int          // to connect; guarded by mu
	silent   *atomic.Bool // of the newest connection; guarded by mu
}

// New returns a Network that accepts connections.
func New() *Network { return &Network{listener: bufconn.Listen(1 << 20)} }

// Serve runs a server on the network until stop is called.
func (n *Network) Serve(server *grpc.Server) (stop func()) {
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(n.listener) }) // an error shows in the calls
	return func() {
		server.Stop()
		serving.Wait()
	}
}

// Dial returns the option with which a client connects over the network.
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

// SetAway makes the network refuse new connections, or accept them again.
func (n *Network) SetAway(away bool) { n.away.Store(away) }

// Silence drops all later data that the client sends on the newest connection,
// without closing it.
func (n *Network) Silence() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent.Store(true)
}

// Attempts returns how often clients tried to connect.
func (n *Network) Attempts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.attempts
}

// silentConn is a client connection. When silent it drops what is written to
// it, so the server does not respond either.
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
