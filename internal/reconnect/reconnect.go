// Package reconnect keeps gRPC clients connected with what may be away for a
// while, with or without a word.
package reconnect

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

// DialOptions returns how a client finds a server again about a second after its
// return, however long it was away: gRPC's own pauses between attempts to connect
// grow to two minutes. A connection that was cut without a word is given up after
// 40 s at most in which a call or a stream waits for something; TCP may take a
// quarter of an hour. On Linux gRPC also gives one up when what it has sent is not
// acknowledged for 10 s.
//
// A ping is sent only while somebody waits and nothing has come for 30 s, which is
// what Google proposes for its own services
// (https://pkg.go.dev/cloud.google.com/go/storage/experimental#WithGRPCKeepalive).
// Other servers, with gRPC's default policy, count a ping that comes within 5
// minutes of another as a strike, close the connection at the third, and forget the
// strikes when they send something (google.golang.org/grpc v1.85.0,
// internal/transport/http2_server.go, handlePing). So they close one on which they
// say nothing for a minute and a half, though a stream waits. Pub/Sub answers the
// client library, which asks on each stream every 30 s.
func DialOptions() []grpc.DialOption {
	soon := backoff.DefaultConfig
	soon.MaxDelay = time.Second
	return []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
}
