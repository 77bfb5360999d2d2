package rig

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/videocatalog/internal/pg/pgtest"
)

// Network is a network between clients and a database. A test can break it. Its
// methods are safe for concurrent use.
type Network struct {
	// URL is the URL of the database through this network.
	URL string

	listener net.Listener

	mu    sync.Mutex
	dial  func(context.Context) (net.Conn, error) // guarded by mu
	links []net.Conn                              // guarded by mu: both sides of each connection
	way   *way                                    // guarded by mu: of the connections since the last Forget
}

// way is the state of connections that break together.
type way struct {
	silent atomic.Bool // nothing passes
}

// NewNetwork creates a network to the database of a URL, for the time of the
// test. It bypasses a pooler.
func NewNetwork(t testing.TB, target string) *Network {
	t.Helper()
	return NewNetworkTo(t, pgtest.Direct(t, target))
}

// NewNetworkTo is NewNetwork to exactly this address, which may be a pooler's.
func NewNetworkTo(t testing.TB, target string) *Network {
	t.Helper()
	cfg, dial := addressOf(t, target)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for a network: %v", err)
	}
	through := url.URL{
		Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password), Host: listener.Addr().String(),
		Path: cfg.Database, RawQuery: "sslmode=disable",
	}
	n := &Network{URL: through.String(), listener: listener, way: new(way), dial: dial}
	t.Cleanup(func() {
		_ = listener.Close() // no client connects any more
		n.Cut()
	})
	go n.accept()
	return n
}

// addressOf returns the configuration of a URL, and a function that connects to its
// server.
func addressOf(t testing.TB, target string) (*pgx.ConnConfig, func(context.Context) (net.Conn, error)) {
	t.Helper()
	cfg, err := pgx.ParseConfig(target)
	if err != nil {
		t.Fatalf("parse URL: %v", err)
	}
	kind, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	return cfg, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, kind, address) }
}

// Move sends new connections to another server, as after a failover, and closes
// the present ones.
func (n *Network) Move(t testing.TB, target string) {
	t.Helper()
	_, dial := addressOf(t, pgtest.Direct(t, target))
	n.mu.Lock()
	n.dial = dial
	n.mu.Unlock()
	n.Cut()
}

func (n *Network) accept() {
	for {
		from, err := n.listener.Accept()
		if err != nil {
			return
		}
		n.mu.Lock()
		dial := n.dial
		n.mu.Unlock()
		to, err := dial(context.Background())
		if err != nil {
			_ = from.Close() // a client sees the same if nobody listens
			continue
		}
		n.mu.Lock()
		n.links = append(n.links, from, to)
		go n.way.pass(to, from)
		go n.way.pass(from, to)
		n.mu.Unlock()
	}
}

// pass copies from one side to the other while the way is not silent, until one side closes the connection.
func (w *way) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		size, err := from.Read(buffer)
		if err != nil {
			return
		}
		if w.silent.Load() {
			continue
		}
		if _, err := to.Write(buffer[:size]); err != nil {
			return
		}
	}
}

// Cut closes all present connections.
func (n *Network) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.links {
		_ = conn.Close() // the error does not matter
	}
}

// Forget makes all present connections silent: nothing passes any more, and
// neither side gets an error. New connections work.
func (n *Network) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.way.silent.Store(true)
	n.way = new(way)
}

// Mute makes all connections silent, including new ones.
func (n *Network) Mute() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.way.silent.Store(true)
}
