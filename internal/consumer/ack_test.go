package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/reconnect"
)

// Messages come soon after an outage, however often the client tried in vain to
// open a stream. Eight pauses of a second are over before waitForAcks gives up. Eight
// of the client's own pauses, which grow to a minute, almost never are.
func TestReceiverReceivesSoonAfterAnOutage(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	var opened atomic.Int32
	outage := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if opened.Add(1) <= 8 {
			return nil, status.Error(codes.Unavailable, "no connection")
		}
		return open(ctx, desc, cc, method, opts...)
	}
	conn, err := b.server.Conn(grpc.WithChainStreamInterceptor(outage))
	pgtest.Must(t, err)
	client, err := pubsub.NewClient(t.Context(), "test-project", option.WithGRPCConn(conn))
	pgtest.Must(t, err)
	t.Cleanup(func() { pgtest.Must(t, client.Close()) })
	reconnect.RetrySoon(client)
	b.publish(messages(1)...)
	(&broker{t, b.server, client}).start(consumer.Config{}, newStore())
	b.waitForAcks()
	if got := opened.Load(); got < 9 {
		t.Errorf("attempts to open a stream = %d, want 9 at least", got)
	}
}

// No pause between two attempts at a call of the client is longer than a second,
// and RetrySoon retries the same errors as the client by itself.
func TestRetrySoon(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	reconnect.RetrySoon(b.client)
	own, err := b.server.Client(t.Context(), "test-project")
	pgtest.Must(t, err)
	defer own.Close()
	retryer := func(options []gax.CallOption) gax.Retryer {
		var settings gax.CallSettings
		for _, option := range options {
			option.Resolve(&settings)
		}
		return settings.Retry()
	}
	soon, late := b.client.SubscriptionAdminClient.CallOptions, own.SubscriptionAdminClient.CallOptions
	for name, call := range map[string]struct{ soon, late gax.Retryer }{
		"StreamingPull":     {retryer(soon.StreamingPull), retryer(late.StreamingPull)},
		"Acknowledge":       {retryer(soon.Acknowledge), retryer(late.Acknowledge)},
		"ModifyAckDeadline": {retryer(soon.ModifyAckDeadline), retryer(late.ModifyAckDeadline)},
	} {
		for code := codes.OK + 1; code <= codes.Unauthenticated; code++ {
			_, got := call.soon.Retry(status.Error(code, "an error"))
			if _, want := call.late.Retry(status.Error(code, "an error")); got != want {
				t.Errorf("%s: after %s it is tried again: %t, by itself: %t", name, code, got, want)
			}
		}
		for range 100 {
			if pause, _ := call.soon.Retry(status.Error(codes.Unavailable, "no connection")); pause > time.Second {
				t.Fatalf("%s: a pause of %s, want a second at most", name, pause)
			}
		}
	}
}
