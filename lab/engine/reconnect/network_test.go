package reconnect_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// network is an in-memory network between a gRPC client and a server, with failures that a test
// controls. It works inside testing/synctest, and is safe for concurrent use.
type network struct {
	listener *bufconn.Listener
	refuses  atomic.Bool

	mu       sync.Mutex
	attempts int          // to connect; guarded by mu
	silent   *atomic.Bool // of the newest connection; guarded by mu
}

// newNetwork returns a network that accepts connections.
func newNetwork() *network { return &network{listener: bufconn.Listen(1 << 20)} }

// Serve runs a server on the network until stop is called.
func (n *network) Serve(server *grpc.Server) (stop func()) {
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(n.listener) }) // an error shows in the calls
	return func() {
		server.Stop()
		serving.Wait()
	}
}

// Dial returns the option with which a client connects over the network.
func (n *network) Dial() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.attempts++
		if n.refuses.Load() {
			return nil, errors.New("refused")
		}
		conn, err := n.listener.DialContext(ctx)
		n.silent = new(atomic.Bool)
		return silentConn{conn, n.silent}, err
	})
}

// Refuse makes the network refuse new connections, or accept them again.
func (n *network) Refuse(refuse bool) { n.refuses.Store(refuse) }

// Silence drops all later data that the client sends on the newest connection,
// without closing it.
func (n *network) Silence() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent.Store(true)
}

// Attempts returns how often clients tried to connect.
func (n *network) Attempts() int {
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
