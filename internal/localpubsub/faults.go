package localpubsub

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault says which calls go wrong, and how. The zero Fault lets every call succeed, at once.
type Fault struct {
	// Method is the last part of a method's name, such as Publish, Acknowledge or StreamingPull, which is looked at
	// when the stream opens. Empty: every method.
	Method string
	// OrderingKey restricts the fault to Publish calls with messages of this key. Empty: it does not.
	OrderingKey string
	// Times is how many calls go wrong. 0: all of them, until the fault is removed.
	Times int
	// Delay comes before anything else.
	Delay time.Duration
	// Code is what the call answers. OK: whatever it would have answered.
	Code codes.Code
	// AnswerLost lets the call take effect before it answers Code. Not for streams.
	AnswerLost bool
}

// Inject puts a fault into force until remove is called. Of several that concern a call the oldest counts.
func (s *Server) Inject(fault Fault) (remove func()) {
	return s.faults.add(fault)
}

// SetDown starts or ends an outage: while it lasts every connection is broken, and each new one at once.
func (s *Server) SetDown(down bool) { s.listener.setDown(down) }

// CutConnections breaks every connection, and with it all streams. New ones are welcome.
func (s *Server) CutConnections() { s.listener.cut() }

type faults struct {
	mu   sync.Mutex
	list []*Fault // guarded by mu
}

func (f *faults) add(fault Fault) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	added := &fault
	f.list = append(f.list, added)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.remove(added)
	}
}

// remove is called with mu held.
func (f *faults) remove(fault *Fault) {
	f.list = slices.DeleteFunc(f.list, func(other *Fault) bool { return other == fault })
}

// take answers the fault that concerns a call, and counts it.
func (f *faults) take(fullMethod string, request any) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	method := fullMethod[strings.LastIndex(fullMethod, "/")+1:]
	for _, fault := range f.list {
		if fault.Method != "" && fault.Method != method || fault.OrderingKey != "" && !hasKey(request, fault.OrderingKey) {
			continue
		}
		taken := *fault
		if fault.Times > 0 {
			if fault.Times--; fault.Times == 0 {
				f.remove(fault)
			}
		}
		return taken
	}
	return Fault{}
}

func hasKey(request any, key string) bool {
	publish, ok := request.(*pubsubpb.PublishRequest)
	return ok && slices.ContainsFunc(publish.GetMessages(), func(m *pubsubpb.PubsubMessage) bool { return m.GetOrderingKey() == key })
}

func (f *faults) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	fault := f.take(info.FullMethod, request)
	if err := fault.wait(ctx); err != nil {
		return nil, err
	}
	if fault.Code == codes.OK {
		return handler(ctx, request)
	}
	if fault.AnswerLost {
		_, _ = handler(ctx, request) // that nobody hears of it is the point
	}
	return nil, fault.err()
}

func (f *faults) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	fault := f.take(info.FullMethod, nil)
	if err := fault.wait(stream.Context()); err != nil {
		return err
	}
	if fault.Code != codes.OK {
		return fault.err()
	}
	return handler(server, stream)
}

func (f Fault) wait(ctx context.Context) error {
	if f.Delay <= 0 {
		return nil
	}
	timer := time.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-timer.C:
		return nil
	}
}

func (f Fault) err() error { return status.Error(f.Code, "injected by a test") }

// listener is a listener whose connections can be broken and refused.
type listener struct {
	net.Listener

	mu    sync.Mutex
	down  bool                  // guarded by mu
	conns map[net.Conn]struct{} // guarded by mu: those that are open
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, listener: l}
		l.mu.Lock()
		down := l.down
		if !down {
			l.conns[c] = struct{}{}
		}
		l.mu.Unlock()
		if !down {
			return c, nil
		}
		_ = accepted.Close() // refused
	}
}

func (l *listener) setDown(down bool) {
	l.mu.Lock()
	l.down = down
	l.mu.Unlock()
	if down {
		l.cut()
	}
}

func (l *listener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.(*conn).Conn.Close() // the server closes it again, through conn.Close
	}
}

type conn struct {
	net.Conn
	listener *listener
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
