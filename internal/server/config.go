package server

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Config are the settings of a Server. The zero value works.
type Config struct {
	// Addr is the TCP address to listen on, unless Deps has a listener.
	// Default: ":8080".
	Addr string
	// MaxWait is how long GetCatalogEntry waits for a version at most, whatever
	// the deadline of the caller. Default: 10 s; less than CallTimeout.
	MaxWait time.Duration
	// CallTimeout is how long a call may take, from its header to the last byte of
	// its answer, when its caller sets no shorter deadline. Default: 30 s.
	CallTimeout time.Duration
	// StreamLifetime is how long a stream may last. Its client is told to call
	// again, which is also when it is looked at again who it is. Default: 30 min.
	StreamLifetime time.Duration
	// MaxReceive is the size in bytes of the largest request, of the body of a
	// REST request too. Default: 256 KiB, several times what the contract allows.
	MaxReceive int
	// MaxCalls is the number of calls at a time, from their header on, and half of
	// it is the number of streams beside them; more are refused with UNAVAILABLE.
	// Half of it may wait for a min_version, and an eighth those of one caller; more
	// are refused with RESOURCE_EXHAUSTED.
	// Default: 1000, the most that Cloud Run sends to one instance.
	MaxCalls int
	// MaxConnections is the number of connections at a time; more wait to be
	// accepted. Default: 10,000.
	MaxConnections int
	// MaxConcurrentStreams is the number of calls at a time on one HTTP/2
	// connection. The front end of Cloud Run uses few connections, so it must not
	// be below the concurrency of the service. Default: 250.
	MaxConcurrentStreams int
	// MaxHeaderBytes is the size in bytes of the header of a request.
	// Default: 64 KiB.
	MaxHeaderBytes int
	// ReadHeaderTimeout is how long a client may take to send the header of a
	// request. Default: 10 s.
	ReadHeaderTimeout time.Duration
	// PingAfter is how long a connection of HTTP/2 may be silent before it is asked
	// for a sign of life, for which it has half as long. Who is in the middle of a
	// header cannot give one, so this is the time for the header of a request there,
	// and it finds clients of a watch that are gone without a word. Default: 30 s.
	PingAfter time.Duration
	// IdleTimeout is how long a connection without a call is kept. It must be
	// longer than what the load balancer keeps it for, which is 600 s on Google
	// Cloud (https://cloud.google.com/load-balancing/docs/https/request-distribution),
	// or requests meet a connection that is just being closed. Default: 620 s.
	IdleTimeout time.Duration
	// CORSOrigins are the origins, such as https://app.example.com, whose pages may
	// call over REST from a browser; "*": all. See CheckOrigin. Default: none.
	CORSOrigins []string
	// DrainDelay is how long a server that stops, and says so to whoever asks for
	// its health, goes on as before; part of DrainTimeout. It is for load balancers
	// that need time to notice. Default: 0, because Cloud Run sends nothing more to
	// an instance that it stops.
	DrainDelay time.Duration
	// DrainTimeout is how long a server that stops waits for the calls in flight
	// before it cuts them off. Cloud Run allows 10 s for everything that a process
	// does when it stops. Default: 4.5 s.
	DrainTimeout time.Duration
}

// WithDefaults returns the Config that New makes of this one.
func (c Config) WithDefaults() Config {
	c.Addr = cmp.Or(c.Addr, ":8080")
	c.MaxWait = cmp.Or(c.MaxWait, 10*time.Second)
	c.CallTimeout = cmp.Or(c.CallTimeout, 30*time.Second)
	c.StreamLifetime = cmp.Or(c.StreamLifetime, 30*time.Minute)
	c.MaxReceive = cmp.Or(c.MaxReceive, 256<<10)
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

// Validate tells everything that is wrong with a Config, with its defaults
// filled in.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MaxWait", int64(c.MaxWait)}, {"CallTimeout", int64(c.CallTimeout)}, {"StreamLifetime", int64(c.StreamLifetime)},
		{"MaxReceive", int64(c.MaxReceive)}, {"MaxCalls", int64(c.MaxCalls)}, {"MaxConnections", int64(c.MaxConnections)},
		{"MaxConcurrentStreams", int64(c.MaxConcurrentStreams)}, {"MaxHeaderBytes", int64(c.MaxHeaderBytes)},
		{"ReadHeaderTimeout", int64(c.ReadHeaderTimeout)}, {"PingAfter", int64(c.PingAfter)}, {"IdleTimeout", int64(c.IdleTimeout)},
		{"DrainDelay", int64(c.DrainDelay)}, {"DrainTimeout", int64(c.DrainTimeout)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative", f.name))
		}
	}
	if c.MaxWait >= c.CallTimeout {
		errs = append(errs, fmt.Errorf("MaxWait (%s) must be less than CallTimeout (%s)", c.MaxWait, c.CallTimeout))
	}
	return errors.Join(errs...)
}
