package port

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"example.com/videocatalog/internal/fields"
)

// Config has the settings of a Server. The zero value works.
type Config struct {
	// Addr is the TCP address to listen on. It is not used if Deps has a
	// listener. Default: ":8080".
	Addr string
	// CallTimeout is the longest time of a call, from its header to the last
	// byte of its response. A caller can set a shorter deadline. Default: 30 s.
	CallTimeout time.Duration
	// StreamLifetime is the longest time of a stream. Its client must then call
	// again, and is authenticated again. Default: 30 min.
	StreamLifetime time.Duration
	// MaxReceive is the largest size in bytes of a request, or of the body of a
	// REST request. Default: 256 KiB, several times what the contract allows.
	MaxReceive int
	// PagesBudget is the largest number of bytes that all list pages of this
	// process may hold. A page counts from before it is read until its client
	// has received it. Default: 32 MiB.
	PagesBudget int64
	// PageWait is how long a list call waits for room in PagesBudget. Default:
	// half of CallTimeout.
	PageWait time.Duration
	// PageRead is how long a client may take to read a list page. Default: a
	// third of CallTimeout.
	PageRead time.Duration
	// MaxCalls is the largest number of calls in flight, counted from their
	// header on. Half as many streams are allowed beside them; more of either
	// are rejected with UNAVAILABLE. Default: 1000, the most that Cloud Run
	// sends to one instance.
	MaxCalls int
	// MaxConnections is the largest number of open connections; more wait to be
	// accepted. Default: 10,000.
	MaxConnections int
	// MaxConcurrentStreams is the largest number of calls in flight on one
	// HTTP/2 connection. It must not be less than the concurrency of the
	// service, because the front end of Cloud Run uses few connections.
	// Default: 250.
	MaxConcurrentStreams int
	// MaxHeaderBytes is the largest size in bytes of a request header. Default:
	// 64 KiB.
	MaxHeaderBytes int
	// ReadHeaderTimeout is the longest time that a client may take to send a
	// request header over HTTP/1.1. Default: 10 s.
	ReadHeaderTimeout time.Duration
	// PingAfter is how long an HTTP/2 connection may be silent before the
	// server sends a ping. Without a response within half that time the
	// connection is closed, which finds clients that have disappeared. A client
	// cannot respond in the middle of a header, so this also limits the time of
	// a header. Default: 30 s.
	PingAfter time.Duration
	// IdleTimeout is how long a connection without a call is kept open. It must
	// be longer than the timeout of the load balancer, or requests arrive on a
	// connection that is being closed. Google Cloud uses 600 s
	// (https://cloud.google.com/load-balancing/docs/https/request-distribution).
	// Default: 620 s.
	IdleTimeout time.Duration
	// Hosts protect a port without authentication from pages in a browser. A request must
	// have one of them as its host, or localhost, or an IP address; "*": any. Otherwise a
	// page could call by a name of its own that has the address of this port (DNS
	// rebinding). CheckHost validates one. Default: any host, for a port that
	// authenticates its callers.
	Hosts []string
	// DrainDelay is how long a stopping server, which already reports that it
	// is not ready, still accepts calls. It gives load balancers time to
	// notice, and is part of DrainTimeout. Default: 0, because Cloud Run sends
	// no new requests to an instance that it stops.
	DrainDelay time.Duration
	// DrainTimeout is how long a stopping server waits for the calls in flight
	// before it aborts them. Cloud Run gives a process 10 s to stop. Default:
	// 4.5 s.
	DrainTimeout time.Duration
}

// WithDefaults returns the Config with each zero value replaced by its default.
func (c Config) WithDefaults() Config {
	c.Addr = cmp.Or(c.Addr, ":8080")
	c.CallTimeout = cmp.Or(c.CallTimeout, 30*time.Second)
	c.StreamLifetime = cmp.Or(c.StreamLifetime, 30*time.Minute)
	c.MaxReceive = cmp.Or(c.MaxReceive, 256<<10)
	c.PagesBudget = cmp.Or(c.PagesBudget, 32<<20)
	c.PageWait = cmp.Or(c.PageWait, c.CallTimeout/2)
	c.PageRead = cmp.Or(c.PageRead, c.CallTimeout/3)
	c.MaxCalls = cmp.Or(c.MaxCalls, 1000)
	c.MaxConnections = cmp.Or(c.MaxConnections, 10_000)
	c.MaxConcurrentStreams = cmp.Or(c.MaxConcurrentStreams, 250)
	c.MaxHeaderBytes = cmp.Or(c.MaxHeaderBytes, 64<<10)
	c.ReadHeaderTimeout = cmp.Or(c.ReadHeaderTimeout, 10*time.Second)
	c.PingAfter = cmp.Or(c.PingAfter, 30*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 620*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 4500*time.Millisecond)
	return c
}

// Validate returns an error that names every field that is negative, and a budget
// in which no page has room.
func (c Config) Validate() error {
	err := fields.NotNegative(c)
	if c.PagesBudget > 0 && c.PagesBudget < pageShare {
		err = errors.Join(err, fmt.Errorf("PagesBudget (%d) must be at least %d, what one list call reserves", c.PagesBudget, pageShare))
	}
	return err
}
