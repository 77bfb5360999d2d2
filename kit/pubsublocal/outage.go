package pubsublocal

import (
	"net"
	"sync"
)

// breakableListener is a listener that can close its connections and refuse new
// ones. Only Listener must be set.
type breakableListener struct {
	net.Listener

	mu    sync.Mutex
	down  bool                        // guarded by mu
	conns map[*breakableConn]struct{} // guarded by mu: the open connections
}

// Accept implements net.Listener.
func (l *breakableListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.admit(accepted); c != nil {
			return c, nil
		}
		_ = accepted.Close() // refused during an outage
	}
}

func (l *breakableListener) admit(accepted net.Conn) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil
	}
	if l.conns == nil {
		l.conns = map[*breakableConn]struct{}{}
	}
	c := &breakableConn{Conn: accepted, listener: l}
	l.conns[c] = struct{}{}
	return c
}

// setDown starts or ends an outage. During an outage, all connections and every
// new one are closed at once.
func (l *breakableListener) setDown(down bool) {
	l.mu.Lock()
	l.down = down
	l.mu.Unlock()
	if down {
		l.cutConnections()
	}
}

// cutConnections closes every connection. Clients can connect again at once.
func (l *breakableListener) cutConnections() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Conn.Close() // its user will call breakableConn.Close, which removes it from conns
	}
}

type breakableConn struct {
	net.Conn

	listener *breakableListener
}

// Close implements net.Conn.
func (c *breakableConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
