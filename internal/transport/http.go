package transport

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// limitGrace lets a call end with a status before its HTTP request is cut off.
const limitGrace = time.Second

// SetBufferPool gives the gRPC library of this process buffers of more sizes. By default it
// encodes a message of 50 kB in a buffer of 1 MiB, and holds it until the client has read it.
// Call it before gRPC is used.
func SetBufferPool() {
	experimental.SetDefaultBufferPool(mem.NewTieredBufferPool(256, 4<<10, 16<<10, 32<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20))
}

// makeHTTP makes the HTTP server with limits on what a client can hold.
func (s *Server) makeHTTP() {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	handler := RefusePages(s.cfg.Hosts, http.HandlerFunc(s.route))
	if s.deps.Wrap != nil {
		handler = s.deps.Wrap(handler)
	}
	s.http = &http.Server{
		Handler:           handler,
		Protocols:         &protocols,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		// The deadline of a call does not interrupt a client that stops sending or reading.
		ReadTimeout:    s.cfg.CallTimeout + limitGrace,
		WriteTimeout:   s.cfg.CallTimeout + limitGrace,
		IdleTimeout:    620 * time.Second, // longer than the load balancer's: https://cloud.google.com/load-balancing/docs/https/request-distribution
		MaxHeaderBytes: 64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 250,              // not less than containerConcurrency: Cloud Run's front end uses few connections
			MaxReadFrameSize:     16 << 10,         // a connection keeps a buffer of the largest frame it received
			SendPingTimeout:      30 * time.Second, // also limits the time of a header: meanwhile a client cannot respond
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     30 * time.Second, // closes connections whose client reads nothing
		},
		ErrorLog: slog.NewLogLogger(s.deps.Log.Handler(), slog.LevelWarn),
	}
}

// route passes a request to gRPC by its content type, to health checks and the
// description by its path, or else to REST.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && r.TransferEncoding != nil {
		// It may have a length, too, which net/http drops: an attempt to smuggle a
		// second request past a proxy (RFC 9112, 6.1).
		w.Header().Set("Connection", "close")
	}
	switch {
	case isGRPC(r):
		stream, known := s.streaming[strings.TrimPrefix(r.URL.Path, "/")]
		if !known {
			writeError(w, r, status.Error(codes.Unimplemented, "there is no such method"))
			return
		}
		s.limited(w, r, stream, s.serveGRPC)
	case r.URL.Path == "/health/live":
		s.handleLive(w, r)
	case r.URL.Path == "/health/ready":
		s.handleReady(w, r)
	case r.URL.Path == "/openapi.json" && s.deps.OpenAPI != nil:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(s.deps.OpenAPI) // the only error is that the client has left
	default:
		s.limited(w, r, isStream(r), s.serveREST)
	}
}

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// isStream reports whether a REST request opens a stream (AIP-136).
func isStream(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, ":watch")
}

// limited serves a call if there are not too many. A refused one is counted and logged
// here, because no interceptor sees it.
func (s *Server) limited(w http.ResponseWriter, r *http.Request, stream bool, serve http.HandlerFunc) {
	count, most, kind := &s.calls, int64(s.cfg.MaxCalls), "call"
	if stream {
		count, most, kind = &s.streams, most/2, "stream"
	}
	defer count.Add(-1)
	if count.Add(1) > most {
		s.refused.Add(r.Context(), 1, metric.WithAttributes(attribute.String("kind", kind)))
		s.deps.Log.WarnContext(r.Context(), "server: call refused, there are too many", "kind", kind, "most", most)
		writeError(w, r, errTooManyCalls)
		return
	}
	if stream && isGRPC(r) {
		s.extend(w, r)
	}
	serve(w, r)
}

// extend gives a request the time of a stream.
func (s *Server) extend(w http.ResponseWriter, r *http.Request) {
	deadline, control := time.Now().Add(s.cfg.StreamLifetime+limitGrace), http.NewResponseController(w)
	if err := errors.Join(control.SetReadDeadline(deadline), control.SetWriteDeadline(deadline)); err != nil {
		s.deps.Log.WarnContext(r.Context(), "server: a stream ends too soon", "err", err)
	}
}

// serveGRPC serves a gRPC request. gRPC reads the body into memory before any handler
// reads it (grpc/internal/transport/handler_server.go).
func (s *Server) serveGRPC(w http.ResponseWriter, r *http.Request) {
	r.Body = &wholeMessages{ReadCloser: http.MaxBytesReader(w, r.Body, int64(s.cfg.MaxReceive)+1<<10)} // and the prefix of the message
	s.grpc.ServeHTTP(w, r)
}

// wholeMessages is the body of a gRPC request, read a message at a time. The transport
// keeps 16 KiB for each read, so that many small ones would hold gigabytes.
type wholeMessages struct {
	io.ReadCloser
	left     int // bytes of the current message that are still to be read
	messages int // that have begun
}

func (b *wholeMessages) Read(p []byte) (n int, err error) {
	const prefix = 5 // https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
	if b.left == 0 {
		if n, err = io.ReadFull(b.ReadCloser, p[:prefix]); err != nil {
			return n, err //nolint:wrapcheck // a reader returns io.EOF as it is
		}
		if b.messages++; b.messages > 100 {
			return 0, errTooLarge
		}
		b.left = int(binary.BigEndian.Uint32(p[1:prefix]))
	}
	m, err := io.ReadFull(b.ReadCloser, p[n:min(len(p), n+b.left)])
	b.left -= m
	return n + m, err //nolint:wrapcheck // the same
}

// makeRefused makes the counter of refused calls. It starts at 0 for each kind, so that the
// first refusal shows as an increase.
func (s *Server) makeRefused() (err error) {
	provider := cmp.Or[metric.MeterProvider](s.deps.Metrics, noop.NewMeterProvider())
	s.refused, err = provider.Meter("example.com/videocatalog/internal/transport").Int64Counter("server.calls.refused", metric.WithUnit("{call}"),
		metric.WithDescription("Calls refused because there were too many at a time (transport.Config.MaxCalls), by kind: call, stream. They are in no other metric."))
	for _, kind := range []string{"call", "stream"} {
		s.refused.Add(context.Background(), 0, metric.WithAttributes(attribute.String("kind", kind)))
	}
	return err //nolint:wrapcheck // names the instrument
}

// RefusePages rejects requests that pages of other origins can send without a
// preflight, such as forms. With hosts it also rejects a request whose Host is
// not allowed; see Config.Hosts. A person in a browser gets the reason as text.
func RefusePages(hosts []string, next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reason := ""
		switch {
		case len(hosts) > 0 && !allowed(hosts, r.Host):
			reason = fmt.Sprintf("nobody is authenticated here, so the host %q may not be used: call localhost or an IP address, or add the host to ALLOWED_HOSTS", r.Host)
		case protection.Check(r) != nil:
			reason = "a page of this origin may not call"
		default:
			next.ServeHTTP(w, r)
			return
		}
		if strings.HasPrefix(r.Header.Get("Accept"), "text/html") {
			http.Error(w, reason, http.StatusForbidden)
			return
		}
		writeError(w, r, status.Error(codes.PermissionDenied, reason))
	})
}

// allowed reports whether a Host header is an IP address, a name of this machine or one
// of hosts. An IP address cannot be a name that a foreign page has.
func allowed(hosts []string, header string) bool {
	host := strings.ToLower(strings.TrimSuffix((&url.URL{Host: header}).Hostname(), "."))
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.ContainsFunc(hosts, func(name string) bool { return name == "*" || strings.EqualFold(name, host) })
}
