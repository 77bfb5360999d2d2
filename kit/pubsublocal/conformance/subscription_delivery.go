package conformance

import (
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
)

func retryLimits(t *testing.T, e *Env) {
	topic := e.Topic(t)
	d := func(seconds int64) *durationpb.Duration { return &durationpb.Duration{Seconds: seconds} }
	tests := []struct {
		name         string
		given, shown *pubsubpb.RetryPolicy
		want         codes.Code
	}{
		{"widest", &pubsubpb.RetryPolicy{MinimumBackoff: d(0), MaximumBackoff: d(600)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(0), MaximumBackoff: d(600)}, codes.OK},
		{"equal", &pubsubpb.RetryPolicy{MinimumBackoff: d(30), MaximumBackoff: d(30)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(30), MaximumBackoff: d(30)}, codes.OK},
		{"both 0", &pubsubpb.RetryPolicy{MinimumBackoff: d(0), MaximumBackoff: d(0)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(0), MaximumBackoff: d(0)}, codes.OK},
		{"unset", &pubsubpb.RetryPolicy{},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(10), MaximumBackoff: d(600)}, codes.OK},
		{"maximum unset", &pubsubpb.RetryPolicy{MinimumBackoff: d(20)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(20), MaximumBackoff: d(600)}, codes.OK},
		{"minimum unset", &pubsubpb.RetryPolicy{MaximumBackoff: d(20)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(10), MaximumBackoff: d(20)}, codes.OK},
		{"minimum above maximum", &pubsubpb.RetryPolicy{MinimumBackoff: d(31), MaximumBackoff: d(30)}, nil, codes.InvalidArgument},
		{"minimum negative", &pubsubpb.RetryPolicy{MinimumBackoff: d(-1)}, nil, codes.InvalidArgument},
		{"minimum too long", &pubsubpb.RetryPolicy{MinimumBackoff: d(601), MaximumBackoff: d(601)}, nil, codes.InvalidArgument},
		{"maximum negative", &pubsubpb.RetryPolicy{MinimumBackoff: d(-2), MaximumBackoff: d(-1)}, nil, codes.InvalidArgument},
		{"maximum too long", &pubsubpb.RetryPolicy{MaximumBackoff: d(601)}, nil, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tryBoth(t, e, topic, func(s *pubsubpb.Subscription) { s.RetryPolicy = test.given }, test.want,
				func(t *testing.T, s *pubsubpb.Subscription) {
					wantEqual(t, test.shown, s.GetRetryPolicy(), "retry policy")
				}, "retry_policy")
		})
	}
}

func withoutRetryPolicy(t *testing.T, e *Env) {
	t.Run("Pull", func(t *testing.T) {
		topic, sub := e.Subscribed(t)
		e.Publish(t, topic, "", "m")
		for range 3 {
			e.Nack(t, sub, wantTexts(t, e, sub, "m")...)
		}
		wantTexts(t, e, sub, "m")
		e.Advance(10 * time.Second) // the lease ends
		wantTexts(t, e, sub, "m")
	})
	t.Run("StreamingPull", func(t *testing.T) {
		topic, sub := e.Subscribed(t)
		stream := openRaw(t, e, sub, streamLease(10))
		e.Publish(t, topic, "", "m")
		before := time.Now()
		for range 3 {
			e.Nack(t, sub, stream.take(t, 1)...)
		}
		stream.take(t, 1)
		e.Advance(10 * time.Second)
		stream.take(t, 1)
		if took := time.Since(before); took > 5*time.Second {
			t.Errorf("five deliveries took %v, want them at once", took)
		}
	})
}

func retryDelays(t *testing.T, e *Env) {
	topic := e.Topic(t)
	for _, test := range []struct {
		name   string
		policy func(*pubsubpb.Subscription)
		delays []int // in seconds
	}{
		{"up to the maximum", delaying(10*time.Second, time.Minute), []int{10, 20, 40, 60, 60}},
		{"default", func(s *pubsubpb.Subscription) { s.RetryPolicy = &pubsubpb.RetryPolicy{} },
			[]int{10, 20, 40, 80, 160, 320, 600, 600}},
		{"always the same", delaying(30*time.Second, 30*time.Second), []int{30, 30, 30}},
	} {
		t.Run(test.name, func(t *testing.T) {
			sub := e.Subscription(t, topic, test.policy)
			e.Publish(t, topic, "", "m")
			failed := wantTexts(t, e, sub, "m")
			for i, seconds := range test.delays {
				delay := time.Duration(seconds) * time.Second
				if i == 1 { // a lease that expires counts as a failure, too
					e.Advance(10 * time.Second)
				} else {
					e.Nack(t, sub, failed...)
				}
				e.Advance(delay - 4*time.Second) // the clock runs during the check
				wantTexts(t, e, sub)
				e.Advance(4 * time.Second)
				if failed = wantTexts(t, e, sub, "m"); len(failed) == 0 {
					t.Fatalf("nothing %v after failure %d", delay, i+1)
				}
			}
			e.Ack(t, sub, failed...)
		})
	}
}

func retryDelayOfOne(t *testing.T, e *Env) {
	delay := delaying(5*time.Minute, 10*time.Minute)
	t.Run("unordered", func(t *testing.T) {
		topic, sub := e.Subscribed(t, delay)
		e.Publish(t, topic, "a", "a1")
		e.Nack(t, sub, wantTexts(t, e, sub, "a1")...)
		e.Publish(t, topic, "a", "a2")
		e.Publish(t, topic, "", "x")
		e.Ack(t, sub, wantTexts(t, e, sub, "a2", "x")...)
		e.Advance(5 * time.Minute)
		wantTexts(t, e, sub, "a1")
	})
	t.Run("ordered", func(t *testing.T) {
		topic, sub := e.Subscribed(t, delay, Ordered)
		e.Publish(t, topic, "a", "a1")
		e.Nack(t, sub, wantTexts(t, e, sub, "a1")...)
		e.Publish(t, topic, "a", "a2")
		e.Publish(t, topic, "b", "b1")
		e.Publish(t, topic, "", "x")
		e.Ack(t, sub, wantTexts(t, e, sub, "b1", "x")...)
		e.Publish(t, topic, "b", "b2")
		e.Ack(t, sub, wantTexts(t, e, sub, "b2")...)
		e.Advance(5 * time.Minute)
		wantInOrder(t, e, sub, "a1", "a2")
	})
	t.Run("ordered, delivered together", func(t *testing.T) {
		topic, sub := e.Subscribed(t, delay, Ordered)
		e.Publish(t, topic, "a", "a1", "a2", "a3")
		run := e.Pull(t, sub, 10)
		if len(run) == 0 {
			t.Fatal("got no messages")
		}
		e.Nack(t, sub, run[0])
		e.Advance(15 * time.Second) // past all leases; none expires, because the nack ended the leases of a2 and a3
		wantTexts(t, e, sub)
		e.Advance(5*time.Minute - 15*time.Second)
		wantInOrder(t, e, sub, "a1", "a2", "a3")
	})
}

// wantInOrder receives and acknowledges messages. It fails the test unless it gets exactly these
// texts in this order.
func wantInOrder(t *testing.T, e *Env, sub string, want ...string) {
	t.Helper()
	var got []string
	for len(got) < len(want) {
		messages := e.Pull(t, sub, 10)
		if len(messages) == 0 {
			break
		}
		got = append(got, Texts(messages)...)
		e.Ack(t, sub, messages...)
	}
	wantEqual(t, want, got, "messages")
}

func ackedRetained(t *testing.T, e *Env) {
	topic := e.Topic(t)
	keeping := e.Subscription(t, topic, retaining(time.Hour), retainingAcked)
	plain := e.Subscription(t, topic, retaining(time.Hour))
	e.Publish(t, topic, "", "1", "2")
	for _, sub := range []string{keeping, plain} {
		e.Ack(t, sub, wantTexts(t, e, sub, "1", "2")...)
		wantTexts(t, e, sub) // not delivered, even if retained
	}
	seekToTime(t, e, plain, aBeginning())
	wantTexts(t, e, plain)
	e.Advance(50 * time.Minute)
	seekToTime(t, e, keeping, aBeginning())
	// The hour starts at the publication, not at the last acknowledgment.
	e.Ack(t, keeping, wantTexts(t, e, keeping, "1", "2")...)
	e.Publish(t, topic, "", "3")
	e.Ack(t, keeping, wantTexts(t, e, keeping, "3")...)
	e.Advance(15 * time.Minute)
	seekToTime(t, e, keeping, aBeginning())
	wantTexts(t, e, keeping, "3")
}

func unackedDropped(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t, retaining(10*time.Minute), func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 600 })
	waiting := e.Subscription(t, topic, retaining(10*time.Minute))
	e.Publish(t, topic, "", "1", "2", "3")
	e.Advance(8 * time.Minute)
	outstanding := wantTexts(t, e, sub, "1", "2", "3")
	if len(outstanding) != 3 {
		t.Fatalf("got %d messages, want 3", len(outstanding))
	}
	e.Publish(t, topic, "", "new")
	e.Advance(3 * time.Minute)
	wantTexts(t, e, waiting, "new")
	e.Ack(t, sub, outstanding[0])
	e.Nack(t, sub, outstanding[1])
	e.Ack(t, sub, wantTexts(t, e, sub, "new")...)
	e.Advance(10 * time.Minute) // the lease of the third message ends
	wantTexts(t, e, sub)
	seekToTime(t, e, sub, aBeginning())
	wantTexts(t, e, sub)
}
