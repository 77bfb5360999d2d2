// Package reconnect configures gRPC clients to continue soon after an outage.
package reconnect

import (
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
)

// DialOptions returns options with which a client reconnects about a second
// after the server is back; gRPC's own delay grows to two minutes. If the
// network drops packets silently, a connection with a pending call or stream is
// closed after at most 40 s. TCP alone can take 15 minutes. On Linux gRPC also
// closes it when sent data is not acknowledged for 10 s.
//
// A ping is sent only while a call or stream is pending and nothing was
// received for 30 s. Google recommends this for its services
// (https://pkg.go.dev/cloud.google.com/go/storage/experimental#WithGRPCKeepalive).
// A server with gRPC's default policy allows one ping per 5 minutes, and closes
// the connection at the third early ping. Sending data resets its count
// (google.golang.org/grpc v1.85.0, handlePing of the HTTP/2 server).
//
// So such a server closes a pending stream on which it sends nothing for 120 s.
// Pub/Sub does send data, because the client library requests a response on
// each stream every 30 s.
func DialOptions() []grpc.DialOption {
	soon := backoff.DefaultConfig
	soon.MaxDelay = time.Second
	return []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
}

// RetrySoon limits the pauses of a client of Pub/Sub to one second between attempts to publish,
// open a stream, acknowledge, or extend a lease. The client's own pauses grow to a minute, so it
// would still sleep when the broker is back. Which errors are retried, and for how long in
// total, does not change. Call RetrySoon before the client is used.
func RetrySoon(client *pubsub.Client) {
	soon := func(again ...codes.Code) gax.CallOption { // again: the codes of the client's own retries
		return gax.WithRetry(func() gax.Retryer {
			return gax.OnCodes(again, gax.Backoff{Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 2})
		})
	}
	topics, subscriptions := client.TopicAdminClient.CallOptions, client.SubscriptionAdminClient.CallOptions
	topics.Publish = append(topics.Publish,
		soon(codes.Aborted, codes.Canceled, codes.Internal, codes.ResourceExhausted, codes.Unknown, codes.Unavailable, codes.DeadlineExceeded))
	subscriptions.StreamingPull = append(subscriptions.StreamingPull,
		soon(codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Internal, codes.Unavailable))
	subscriptions.Acknowledge = append(subscriptions.Acknowledge, soon(codes.Unavailable))
	subscriptions.ModifyAckDeadline = append(subscriptions.ModifyAckDeadline, soon(codes.Unavailable))
}
