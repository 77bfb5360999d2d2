package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// proxy is between a process and PostgreSQL, or between all processes and the
// broker. It produces faults of a network. Of PostgreSQL's protocol it knows only
// the response to a COMMIT. Its methods are safe for concurrent use.
type proxy struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	wg       sync.WaitGroup

	mu       sync.Mutex
	links    map[*link]struct{} // guarded by mu
	delay    time.Duration      // guarded by mu: of all traffic
	stalled  chan struct{}      // guarded by mu: closed when held traffic may continue; nil: nothing is held
	onCommit []*func()          // guarded by mu: the first is called instead of passing on the next response to a COMMIT
	closed   bool               // guarded by mu
	commits  int                // guarded by mu: responses to a COMMIT that were passed on
}

// link is a connection of the process and the connection to the server that
// belongs to it.
type link struct {
	from, to net.Conn
	silent   atomic.Bool // nothing is passed on any more, not even the end of the connection
}

func newProxy(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*proxy, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for a proxy: %w", err)
	}
	p := &proxy{listener: listener, dial: dial, links: map[*link]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // perhaps out of file descriptors
			continue
		}
		p.wg.Go(func() { p.serve(conn) })
	}
}

func (p *proxy) serve(from net.Conn) {
	defer from.Close()
	p.hold() // new connections are held, too
	to, err := p.dial(context.Background())
	if err != nil {
		return // PostgreSQL also refuses connections when it is down
	}
	defer to.Close()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	l := &link{from: from, to: to}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pass(l, to, from, false) })
	both.Go(func() { p.pass(l, from, to, true) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// pass copies in one direction until a side closes, and then closes both. If the
// link is silent, it closes only the side that it reads from.
func (p *proxy) pass(l *link, to, from net.Conn, answers bool) {
	defer func() {
		_ = from.Close() // it has ended
		if !l.silent.Load() {
			_ = to.Close() // as above
		}
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			p.hold()
			if l.silent.Load() {
				continue
			}
			if answers && p.intercept(buffer[:n]) {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hold delays traffic by the present delay, and until a stall ends.
func (p *proxy) hold() {
	p.mu.Lock()
	delay, stalled := p.delay, p.stalled
	p.mu.Unlock()
	time.Sleep(delay)
	if stalled != nil {
		<-stalled
	}
}

// commitComplete is PostgreSQL's response to a COMMIT: type C, length, command
// tag (https://www.postgresql.org/docs/current/protocol-message-formats.html).
var commitComplete = []byte("C\x00\x00\x00\x0bCOMMIT\x00")

// intercept reports whether the connection must be closed, because data has a
// response to a COMMIT that is intercepted.
func (p *proxy) intercept(data []byte) bool {
	if !bytes.Contains(data, commitComplete) {
		return false
	}
	p.mu.Lock()
	if len(p.onCommit) == 0 {
		p.commits++
		p.mu.Unlock()
		return false
	}
	act := *p.onCommit[0]
	p.onCommit = p.onCommit[1:]
	p.mu.Unlock()
	act()
	return true
}

// interceptCommit calls act instead of passing on the next response to a COMMIT,
// and then closes the connection. Calls take effect in order, one response each.
// cancel cancels it, and returns false if it is too late.
func (p *proxy) interceptCommit(act func()) (cancel func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onCommit = append(p.onCommit, &act)
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		i := slices.Index(p.onCommit, &act)
		if i >= 0 {
			p.onCommit = slices.Delete(p.onCommit, i, i+1)
		}
		return i >= 0
	}
}

// slow delays all traffic by d. 0 ends the delay.
func (p *proxy) slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// stall holds all traffic until resume is called.
func (p *proxy) stall() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stalled := make(chan struct{})
	p.stalled = stalled
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stalled = nil
		close(stalled)
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		_ = l.from.Close() // this is the fault
		_ = l.to.Close()
	}
}

// silence silences all present connections, like a network that has forgotten
// them: what is sent is lost, and neither side gets an error. New connections
// work. giveUp closes the server's side of the silenced ones.
func (p *proxy) silence() (giveUp func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	forgotten := slices.Collect(maps.Keys(p.links))
	for _, l := range forgotten {
		l.silent.Store(true)
	}
	return func() {
		for _, l := range forgotten {
			_ = l.to.Close() // the error does not matter
		}
	}
}

// committed returns how many responses to a COMMIT the process received.
func (p *proxy) committed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commits
}

// open returns the number of connections.
func (p *proxy) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// close closes the listener and all connections, and waits for the goroutines.
func (p *proxy) close() {
	_ = p.listener.Close() // the error does not matter
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cut()
	p.wg.Wait()
}
