package port

import (
	"cmp"
	"time"
)

// Config has the settings of a Server. The zero value works.
type Config struct {
	// CallTimeout is the longest time of a call, from its header to the last
	// byte of its response. A caller can set a shorter deadline. Default: 30 s.
	CallTimeout time.Duration
	// StreamLifetime is the longest time of a stream. Its client must then call
	// again, and is authenticated again. Default: 30 min.
	StreamLifetime time.Duration
	// MaxReceive is the largest size in bytes of a request. Default: 256 KiB.
	MaxReceive int
	// MaxCalls is the largest number of calls in flight, counted from their
	// header on. Besides, half as many streams may be open. More are rejected with
	// RESOURCE_EXHAUSTED. A call holds a request of MaxReceive or a page of
	// 256 KiB. Default: 500, twice containerConcurrency of deploy/run.
	MaxCalls int
	// MaxConnections is the largest number of open connections; more wait to be
	// accepted. Default: 10,000.
	MaxConnections int
	// ReadHeaderTimeout is the longest time that a client may take to send a
	// request header over HTTP/1.1. Default: 10 s.
	ReadHeaderTimeout time.Duration
	// Hosts protect a port without authentication from DNS rebinding, by which a
	// web page calls it under the page's host name. The host of a request must be
	// one of Hosts, localhost, or an IP address; "*": any. Default: any.
	Hosts []string
	// DrainTimeout is how long a stopping server waits for the calls in flight
	// before it aborts them. Cloud Run gives a process 10 s. Default: 4.5 s.
	DrainTimeout time.Duration
}

// WithDefaults returns the Config with each zero value replaced by its default.
func (c Config) WithDefaults() Config {
	c.CallTimeout = cmp.Or(c.CallTimeout, 30*time.Second)
	c.StreamLifetime = cmp.Or(c.StreamLifetime, 30*time.Minute)
	c.MaxReceive = cmp.Or(c.MaxReceive, 256<<10)
	c.MaxCalls = cmp.Or(c.MaxCalls, 500)
	c.MaxConnections = cmp.Or(c.MaxConnections, 10_000)
	c.ReadHeaderTimeout = cmp.Or(c.ReadHeaderTimeout, 10*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 4500*time.Millisecond)
	return c
}
