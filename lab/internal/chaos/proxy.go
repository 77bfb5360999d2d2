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

// proxy stands between one process and PostgreSQL, or all of them and the broker,
// and does to their connections what networks do. It knows PostgreSQL's protocol
// only so far as to recognize the answer to a COMMIT. Its methods may be called
// from several goroutines.
type proxy struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	wg       sync.WaitGroup

	mu       sync.Mutex
	links    map[*link]struct{} // guarded by mu
	delay    time.Duration      // guarded by mu: of everything on its way
	stalled  chan struct{}      // guarded by mu: closed when what is held may go on; nil: nothing is held
	onCommit []*func()          // guarded by mu: one is called instead of passing on the next answer to a COMMIT
	closed   bool               // guarded by mu
	commits  int                // guarded by mu: answers to a COMMIT that were passed on
}

// link is one connection of the process, and the one to the server behind it.
type link struct {
	from, to net.Conn
	silent   atomic.Bool // nothing is passed on any more, not even that a side is gone
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
			time.Sleep(10 * time.Millisecond) // out of file descriptors, perhaps
			continue
		}
		p.wg.Go(func() { p.serve(conn) })
	}
}

func (p *proxy) serve(from net.Conn) {
	defer from.Close()
	p.hold() // a host that is not reached is not reached by new connections either
	to, err := p.dial(context.Background())
	if err != nil {
		return // as PostgreSQL does when it is down
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

// pass copies until one side is gone, and then ends both, unless the link is
// silent.
func (p *proxy) pass(l *link, to, from net.Conn, answers bool) {
	defer func() {
		_ = from.Close() // it is gone
		if !l.silent.Load() {
			_ = to.Close() // likewise
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

// hold waits as long as the network takes.
func (p *proxy) hold() {
	p.mu.Lock()
	delay, stalled := p.delay, p.stalled
	p.mu.Unlock()
	time.Sleep(delay)
	if stalled != nil {
		<-stalled
	}
}

// commitComplete is the message by which PostgreSQL answers a COMMIT: type C,
// its length, the command tag
// (https://www.postgresql.org/docs/current/protocol-message-formats.html).
var commitComplete = []byte("C\x00\x00\x00\x0bCOMMIT\x00")

// intercept reports whether the connection must end here, because what comes
// would tell the process that its transaction is committed.
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

// interceptCommit lets act happen instead of the answer to the next COMMIT
// that nobody else waits for, and then cuts the connection; the function it
// returned gives that up, and returns false when it is too late for that.
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

// slow delays everything by d; 0 ends that.
func (p *proxy) slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// stall holds everything until the function it returns is called.
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

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		_ = l.from.Close() // that is the harm
		_ = l.to.Close()
	}
}

// silence is a network that has forgotten all connections there are: nobody is
// told, what is sent is lost, and new ones work. The function it returns lets the
// server, and only that, give its side of them up.
func (p *proxy) silence() (giveUp func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	forgotten := slices.Collect(maps.Keys(p.links))
	for _, l := range forgotten {
		l.silent.Store(true)
	}
	return func() {
		for _, l := range forgotten {
			_ = l.to.Close() // nobody waits for it
		}
	}
}

// committed is how often the process was told that its transaction is committed.
func (p *proxy) committed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commits
}

// open is how many connections there are.
func (p *proxy) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// close ends everything; nothing is left.
func (p *proxy) close() {
	_ = p.listener.Close() // nobody can come any more
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cut()
	p.wg.Wait()
}
