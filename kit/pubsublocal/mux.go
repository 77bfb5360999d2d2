package pubsublocal

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// http2Preface is the start of every HTTP/2 connection: RFC 9113, section 3.4.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// prefaceTimeout is how long a new connection may send nothing. Clients of both
// protocols send first, immediately.
const prefaceTimeout = 10 * time.Second

// splitListener serves two protocols on one listener. grpcListener accepts the
// connections that start with the HTTP/2 preface, and httpListener all others.
// So gRPC uses its own transport, which needs a quarter of the CPU of
// grpc.Server.ServeHTTP, and JSON uses HTTP/1.1.
//
// A connection that sends nothing is closed after prefaceTimeout, and delays no
// other. When l is closed, both listeners and all goroutines end. When both
// listeners are closed, l is closed and the goroutines have ended. Accepted
// connections stay open until their users close them.
func splitListener(l net.Listener) (grpcListener, httpListener net.Listener) {
	s := &splitter{parent: l, ended: make(chan struct{}), undecided: map[net.Conn]struct{}{}, open: 2}
	s.grpc = &splitHalf{splitter: s, conns: make(chan net.Conn), closed: make(chan struct{})}
	s.http = &splitHalf{splitter: s, conns: make(chan net.Conn), closed: make(chan struct{})}
	s.running.Go(s.accept)
	return s.grpc, s.http
}

type splitter struct {
	parent     net.Listener
	grpc, http *splitHalf
	running    sync.WaitGroup
	ended      chan struct{} // closed when parent accepts no more connections
	err        error         // the error of parent; written before ended is closed

	mu        sync.Mutex
	undecided map[net.Conn]struct{} // guarded by mu: connections whose first bytes are not read yet
	open      int                   // guarded by mu: number of halves that are open
}

func (s *splitter) accept() {
	pause := time.Duration(0)
	for {
		c, err := s.parent.Accept()
		switch temporary, ok := err.(interface{ Temporary() bool }); {
		case err == nil:
			pause = 0
			s.mu.Lock()
			s.undecided[c] = struct{}{}
			s.mu.Unlock()
			s.running.Go(func() { s.sort(c) })
		case ok && temporary.Temporary(): // for example: too many open files
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
		default:
			s.end(err)
			return
		}
	}
}

// end closes the connections that were not accepted, so that their goroutines
// end.
func (s *splitter) end(err error) {
	s.err = err
	close(s.ended)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.undecided {
		_ = c.Close() // nobody has used it
	}
}

// sort passes a connection to the half of its protocol.
func (s *splitter) sort(c net.Conn) {
	first, err := firstBytes(c)
	s.mu.Lock()
	delete(s.undecided, c)
	s.mu.Unlock()
	if err != nil {
		_ = c.Close() // it did not send enough
		return
	}
	half := s.http
	if string(first) == http2Preface {
		half = s.grpc
	}
	select {
	case half.conns <- &peekedConn{Conn: c, first: first}:
	case <-half.closed:
		_ = c.Close()
	case <-s.ended:
		_ = c.Close()
	}
}

// firstBytes reads until it is known whether the connection starts with the
// preface.
func firstBytes(c net.Conn) ([]byte, error) {
	if err := c.SetReadDeadline(time.Now().Add(prefaceTimeout)); err != nil {
		return nil, err
	}
	first := make([]byte, 0, len(http2Preface))
	for len(first) < len(http2Preface) && bytes.HasPrefix([]byte(http2Preface), first) {
		n, err := c.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
		if err != nil && (n == 0 || err != io.EOF) { //nolint:errorlint // io.Reader returns it unwrapped
			return nil, err
		}
	}
	return first, c.SetReadDeadline(time.Time{})
}

// splitHalf is one of the two listeners.
type splitHalf struct {
	splitter *splitter
	conns    chan net.Conn
	once     sync.Once
	closed   chan struct{}
}

// Accept implements net.Listener.
func (h *splitHalf) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	case <-h.splitter.ended:
		return nil, h.splitter.err
	}
}

// Addr implements net.Listener.
func (h *splitHalf) Addr() net.Addr { return h.splitter.parent.Addr() }

// Close implements net.Listener.
func (h *splitHalf) Close() error {
	var err error
	h.once.Do(func() {
		close(h.closed)
		s := h.splitter
		s.mu.Lock()
		s.open--
		last := s.open == 0
		s.mu.Unlock()
		if last {
			if err = s.parent.Close(); errors.Is(err, net.ErrClosed) {
				err = nil // it was closed before
			}
			s.running.Wait()
		}
	})
	return err
}

// peekedConn is a connection that first returns the bytes that were already
// read.
type peekedConn struct {
	net.Conn

	first []byte // needs no lock: gRPC and net/http read in one goroutine at a time
}

// Read implements net.Conn.
func (c *peekedConn) Read(b []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}

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
