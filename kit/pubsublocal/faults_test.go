package pubsublocal

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faulty calls methods through the interceptors of faults.
type faulty struct {
	*faults

	calls int // calls that reached the method
}

func newFaulty() *faulty { return &faulty{faults: &faults{clock: &Clock{}}} }

func (f *faulty) call(ctx context.Context, method string, request any) error {
	_, err := f.unary(ctx, request, &grpc.UnaryServerInfo{FullMethod: "/google.pubsub.v1.X/" + method},
		func(context.Context, any) (any, error) { f.calls++; return "answer", nil })
	return err
}

func (f *faulty) open(ctx context.Context, method string) error {
	return f.stream(nil, fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/google.pubsub.v1.X/" + method},
		func(any, grpc.ServerStream) error { f.calls++; return nil })
}

type fakeStream struct {
	grpc.ServerStream

	ctx context.Context
}

func (s fakeStream) Context() context.Context { return s.ctx }

func publishRequest(keys ...string) *pubsubpb.PublishRequest {
	r := &pubsubpb.PublishRequest{}
	for _, key := range keys {
		r.Messages = append(r.Messages, &pubsubpb.PubsubMessage{OrderingKey: key})
	}
	return r
}

// A fault applies to the calls that match it, and as often as Times says.
func TestFaultsConcern(t *testing.T) {
	const publish, pull = "Publish", "Pull"
	type attempt struct {
		method  string
		request any
	}
	plain := attempt{publish, publishRequest("")}
	keyed := attempt{publish, publishRequest("a", "b")}
	tests := []struct {
		name  string
		fault Fault
		calls []attempt
		want  []codes.Code
	}{
		{"every method", Fault{Code: codes.Unavailable}, []attempt{plain, {pull, nil}}, []codes.Code{codes.Unavailable, codes.Unavailable}},
		{"one method", Fault{Method: pull, Code: codes.Aborted}, []attempt{plain, {pull, nil}}, []codes.Code{codes.OK, codes.Aborted}},
		{"twice", Fault{Times: 2, Code: codes.Internal}, []attempt{plain, plain, plain}, []codes.Code{codes.Internal, codes.Internal, codes.OK}},
		{"one key", Fault{OrderingKey: "b", Code: codes.Internal}, []attempt{plain, keyed, {pull, nil}},
			[]codes.Code{codes.OK, codes.Internal, codes.OK}},
		{"times count only what is concerned", Fault{Method: pull, Times: 1, Code: codes.Internal}, []attempt{plain, {pull, nil}, {pull, nil}},
			[]codes.Code{codes.OK, codes.Internal, codes.OK}},
		{"the zero fault", Fault{}, []attempt{plain}, []codes.Code{codes.OK}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFaulty()
			f.add(tt.fault)
			var got []codes.Code
			succeeded := 0
			for _, c := range tt.calls {
				code := status.Code(f.call(t.Context(), c.method, c.request))
				got = append(got, code)
				if code == codes.OK {
					succeeded++
				}
			}
			same(t, "codes", tt.want, got)
			if f.calls != succeeded {
				t.Errorf("the method ran %d times, want %d", f.calls, succeeded)
			}
		})
	}
}

// If several faults match, the oldest one applies, until it is removed.
func TestFaultsOldestFirst(t *testing.T) {
	f := newFaulty()
	remove := f.add(Fault{Code: codes.Aborted})
	f.add(Fault{Code: codes.Internal})
	first := status.Code(f.call(t.Context(), "Pull", nil))
	remove()
	remove() // has no more effect
	second := status.Code(f.call(t.Context(), "Pull", nil))
	if first != codes.Aborted || second != codes.Internal {
		t.Errorf("codes = %v, %v, want Aborted, Internal", first, second)
	}
}

// With ResponseLost, the call takes effect and returns an error.
func TestFaultsResponseLost(t *testing.T) {
	f := newFaulty()
	f.add(Fault{Code: codes.Unavailable, ResponseLost: true})
	if err := f.call(t.Context(), "Publish", nil); status.Code(err) != codes.Unavailable || f.calls != 1 {
		t.Errorf("call = %v and the method ran %d times, want UNAVAILABLE and once", err, f.calls)
	}
}

// A stream fails when it opens.
func TestFaultsStream(t *testing.T) {
	f := newFaulty()
	f.add(Fault{Method: "StreamingPull", Times: 1, Code: codes.Unavailable})
	if err := f.open(t.Context(), "StreamingPull"); status.Code(err) != codes.Unavailable || f.calls != 0 {
		t.Errorf("the first stream: %v after %d calls, want UNAVAILABLE after none", err, f.calls)
	}
	if err := f.open(t.Context(), "StreamingPull"); err != nil || f.calls != 1 {
		t.Errorf("the second stream: %v after %d calls, want nil after one", err, f.calls)
	}
}

// The time of a fault is by the clock of the server: Advance ends it.
func TestFaultsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty()
		f.add(Fault{Code: codes.Unavailable, For: time.Minute})
		f.clock.Advance(50 * time.Second)
		time.Sleep(9 * time.Second)
		if err := f.call(t.Context(), "Pull", nil); status.Code(err) != codes.Unavailable {
			t.Errorf("after 59 s: %v, want UNAVAILABLE", err)
		}
		time.Sleep(time.Second)
		if err := f.call(t.Context(), "Pull", nil); err != nil {
			t.Errorf("after 60 s: %v, want nil", err)
		}
	})
}

// A delay is by the clock of the server, and ends when the caller disconnects.
func TestFaultsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty()
		f.add(Fault{Delay: time.Minute})
		start := time.Now()
		if err := f.call(t.Context(), "Pull", nil); err != nil || time.Since(start) != time.Minute || f.calls != 1 {
			t.Errorf("call = %v after %v, want nil after a minute", err, time.Since(start))
		}

		answered := make(chan error, 1)
		go func() { answered <- f.open(t.Context(), "StreamingPull") }()
		synctest.Wait()
		start = time.Now()
		f.clock.Advance(time.Minute)
		if err := <-answered; err != nil || time.Since(start) != 0 {
			t.Errorf("with a moved clock: %v after %v, want nil at once", err, time.Since(start))
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.call(ctx, "Pull", nil); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("with a deadline: %v, want DEADLINE_EXCEEDED", err)
		}
	})
}
