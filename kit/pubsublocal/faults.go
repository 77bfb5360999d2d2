package pubsublocal

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault says which calls fail or are delayed, and how. The zero Fault has no effect.
type Fault struct {
	// Method is the last part of a method's name, such as Publish, Acknowledge or StreamingPull. A fault applies to
	// a stream when it opens. Empty: every method.
	Method string
	// OrderingKey restricts the fault to Publish calls with messages of this key. Empty: no restriction.
	OrderingKey string
	// Times is the number of calls that the fault applies to. 0: no limit.
	Times int
	// For is how long the fault is in force, by the clock of the server. 0: no limit.
	For time.Duration
	// Delay is how long a call waits before anything else, by the clock of the server.
	Delay time.Duration
	// Code is the code that the call returns. OK: the call is executed.
	Code codes.Code
	// ResponseLost means that the call takes effect before it returns Code. It needs a Code, and is not for streams.
	ResponseLost bool
}

// faults are the faults in force. Its methods are safe for concurrent use.
type faults struct {
	clock *Clock

	mu   sync.Mutex
	list []*activeFault // guarded by mu: oldest first
}

type activeFault struct {
	Fault

	until time.Time // zero: no limit
}

// add puts a fault in force until remove is called. If several faults match a call, the oldest one applies.
func (f *faults) add(fault Fault) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	added := &activeFault{Fault: fault}
	if fault.For > 0 {
		added.until = f.clock.Now().Add(fault.For)
	}
	f.list = append(f.list, added)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.list = slices.DeleteFunc(f.list, func(a *activeFault) bool { return a == added })
	}
}

// take returns the fault that applies to a call, and counts the call. If there is none, it returns the zero Fault.
func (f *faults) take(fullMethod string, request any) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) > 0 {
		now := f.clock.Now()
		f.list = slices.DeleteFunc(f.list, func(a *activeFault) bool { return !a.until.IsZero() && !now.Before(a.until) })
	}
	method := fullMethod[strings.LastIndex(fullMethod, "/")+1:]
	for i, a := range f.list {
		if a.Method != "" && a.Method != method || a.OrderingKey != "" && !hasOrderingKey(request, a.OrderingKey) {
			continue
		}
		taken := a.Fault
		if a.Times > 0 {
			if a.Times--; a.Times == 0 {
				f.list = slices.Delete(f.list, i, i+1)
			}
		}
		return taken
	}
	return Fault{}
}

func hasOrderingKey(request any, key string) bool {
	publish, ok := request.(*pubsubpb.PublishRequest)
	return ok && slices.ContainsFunc(publish.GetMessages(), func(m *pubsubpb.PubsubMessage) bool { return m.GetOrderingKey() == key })
}

// unary is a grpc.UnaryServerInterceptor.
func (f *faults) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	fault := f.take(info.FullMethod, request)
	if err := f.wait(ctx, fault.Delay); err != nil {
		return nil, err
	}
	if fault.Code == codes.OK {
		return handler(ctx, request)
	}
	if fault.ResponseLost {
		_, _ = handler(ctx, request) // it takes effect, but its result is lost
	}
	return nil, fault.err()
}

// stream is a grpc.StreamServerInterceptor.
func (f *faults) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	fault := f.take(info.FullMethod, nil)
	if err := f.wait(stream.Context(), fault.Delay); err != nil {
		return err
	}
	if fault.Code != codes.OK {
		return fault.err()
	}
	return handler(server, stream)
}

// wait waits for delay by the clock of the server. It returns an error if the caller disconnects first.
func (f *faults) wait(ctx context.Context, delay time.Duration) error {
	if delay <= 0 {
		return nil
	}
	over := make(chan struct{})
	t := f.clock.newTimer(func() { close(over) })
	t.set(f.clock.Now().Add(delay))
	select {
	case <-ctx.Done():
		t.set(time.Time{})
		return status.FromContextError(ctx.Err()).Err()
	case <-over:
		return nil
	}
}

func (f Fault) err() error { return status.Error(f.Code, "injected fault") }
