package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/api"
)

// limitGrace is how much later than its call a request ends: what ends the call
// comes first, with a status.
const limitGrace = time.Second

// grpcOverhead is what a request may have in gRPC beside its message: the prefix
// of the message, and what a client may send behind it that nobody reads.
const grpcOverhead = 1 << 10

// handle is the shared port: gRPC by its content type, and by path what
// operators ask for; the rest is REST. Its limits hold for every request.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	s.limitTime(w, r, s.isStream(r) && r.Method != http.MethodOptions)
	if r.ProtoMajor == 1 && r.TransferEncoding != nil {
		// Whoever sends a length beside the chunks wants somebody in between to see
		// another end of the request. net/http goes by the chunks and forgets the
		// length, so this cannot be told any more, and the connection must end
		// (RFC 9112, 6.1).
		w.Header().Set("Connection", "close")
	}
	s.admitted.ServeHTTP(w, r)
}

// isStream reports whether a request is for a stream, over gRPC or REST.
func (s *Server) isStream(r *http.Request) bool { return s.streaming[r.URL.Path] || isStream(r) }

// route serves a request of an origin that may call.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	isStream := s.isStream(r)
	switch {
	case r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		leave, ok := s.enter(r.Context(), isStream)
		if !ok {
			refuseGRPC(w, errTooManyCalls)
			return
		}
		defer leave()
		r, end := s.bound(w, r, isStream)
		defer end()
		// gRPC reads a body to its end into memory, whether or not a handler wants it
		// (grpc/internal/transport/handler_server.go).
		r.Body = &wholeMessages{ReadCloser: http.MaxBytesReader(w, r.Body, int64(s.cfg.MaxReceive)+grpcOverhead)}
		s.grpc.ServeHTTP(w, r)
	case r.URL.Path == "/health/live":
		onlyRead(s.handleLive)(w, r)
	case r.URL.Path == "/health/ready":
		onlyRead(s.handleReady)(w, r)
	case r.URL.Path == "/openapi.json":
		onlyRead(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(api.OpenAPI) // the client is gone
		})(w, r)
	default:
		leave, ok := s.enter(r.Context(), isStream)
		if !ok {
			writeError(w, errTooManyCalls, httpStatus(errTooManyCalls))
			return
		}
		defer leave()
		r, end := s.bound(w, r, isStream)
		defer end()
		s.gateway.ServeHTTP(w, r)
	}
}

// handleLive reports whether this process still does its work, or should be
// started anew.
func (s *Server) handleLive(w http.ResponseWriter, r *http.Request) {
	if err := s.live(); err != nil {
		s.log.ErrorContext(r.Context(), "server: stuck", "err", err)
		writeHealth(w, http.StatusServiceUnavailable, "stuck")
		return
	}
	writeHealth(w, http.StatusOK, "live")
}

// enter reports whether there is room for one more call, and what to do when it
// has ended. Streams last, so that they get half of the room only. One that is
// refused is counted and logged here: it goes no further, and nobody else sees
// it.
func (s *Server) enter(ctx context.Context, isStream bool) (leave func(), ok bool) {
	count, most, kind := &s.calls, int64(s.cfg.MaxCalls), kindCall
	if isStream {
		count, most, kind = &s.streams, most/2, kindStream
	}
	if count.Add(1) > most {
		count.Add(-1)
		s.refused.Add(ctx, 1, refusedKind(kind))
		s.log.WarnContext(ctx, "server: call refused, there are too many", "kind", kind, "most", most)
		return nil, false
	}
	return func() { count.Add(-1) }, true
}

// bound makes a request hold no more memory than there is for it, until end. The
// request of a stream is small: it must not hold one of the places for large ones
// for as long as the stream lasts.
func (s *Server) bound(w http.ResponseWriter, r *http.Request, isStream bool) (bounded *http.Request, end func()) {
	if isStream {
		r.Body = http.MaxBytesReader(w, r.Body, smallBody)
	}
	body := &boundedBody{ReadCloser: r.Body, ctx: r.Context(), large: s.largeBodies}
	bounded, endPage := s.pages.share(w, r)
	bounded.Body = body
	return bounded, func() {
		body.end()
		endPage()
	}
}

// limitTime gives a request the time that its call may take. The call has a
// deadline of its own, but that begins when the request is received, and reaches
// nobody who waits for a client that does not send or does not read.
func (s *Server) limitTime(w http.ResponseWriter, r *http.Request, isStream bool) {
	limit := s.cfg.CallTimeout
	if isStream {
		limit = s.cfg.StreamLifetime
	}
	deadline := time.Now().Add(limit + limitGrace)
	control := http.NewResponseController(w)
	err := control.SetWriteDeadline(deadline)
	if r.Body != http.NoBody { // nor may one that has none be read: it may be a stream, with the next request behind it
		if !s.streaming[r.URL.Path] { // a stream over REST has no body that could last
			deadline = time.Now().Add(s.cfg.CallTimeout + limitGrace)
		}
		err = errors.Join(err, control.SetReadDeadline(deadline))
	}
	if err != nil {
		s.log.WarnContext(r.Context(), "server: no time limit for a request", "err", err)
	}
}

// refuseGRPC returns a call that nobody has looked at, as
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md says, in
// headers only.
func refuseGRPC(w http.ResponseWriter, st *status.Status) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", strconv.Itoa(int(st.Code())))
	w.Header().Set("Grpc-Message", st.Message())
	if details, err := proto.Marshal(st.Proto()); err == nil {
		w.Header().Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	}
	w.WriteHeader(http.StatusOK)
}

// onlyRead refuses methods other than GET and HEAD.
func onlyRead(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			writeError(w, notAllowed(r), http.StatusMethodNotAllowed)
			return
		}
		next(w, r)
	}
}

func writeHealth(w http.ResponseWriter, code int, status string) {
	writeHealthOf(w, code, map[string]string{"status": status})
}

// writeHealthOf writes an object; the keys come in order.
func writeHealthOf(w http.ResponseWriter, code int, of map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(of) // the client is gone
}
