package port

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
)

// limitGrace is the time between the deadline of a call and the end of its HTTP
// request. It lets the call end first, with a status.
const limitGrace = time.Second

// grpcOverhead is what a gRPC body may hold besides its message: the prefix of
// the message, and bytes behind it, which are ignored.
const grpcOverhead = 1 << 10

// handle serves every request of the port and limits its time. The content type
// selects gRPC. The path selects health checks and the API description. All
// other requests are REST.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	s.limitTime(w, r, s.isStream(r) && r.Method != http.MethodOptions)
	if r.ProtoMajor == 1 && r.TransferEncoding != nil {
		// A request with both a length and chunks may be an attempt to smuggle
		// a second request past a proxy. This code cannot detect it, because
		// net/http drops the length. So the connection of every chunked request
		// is closed (RFC 9112, 6.1).
		w.Header().Set("Connection", "close")
	}
	s.admitted.ServeHTTP(w, r)
}

// isStream reports whether a request opens a stream, over gRPC or REST.
func (s *Server) isStream(r *http.Request) bool { return s.streaming[r.URL.Path] || isStream(r) }

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// route passes a request to gRPC, to an operator's endpoint or to REST.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	isStream := s.isStream(r)
	switch {
	case isGRPC(r):
		leave, ok := s.enter(r.Context(), isStream)
		if !ok {
			refuse(w, r, errTooManyCalls)
			return
		}
		defer leave()
		r, end := s.bound(w, r, isStream)
		defer end()
		// gRPC reads the whole body into memory, even if no handler wants it
		// (grpc/internal/transport/handler_server.go).
		r.Body = &wholeMessages{ReadCloser: http.MaxBytesReader(w, r.Body, int64(s.cfg.MaxReceive)+grpcOverhead)}
		s.grpc.ServeHTTP(w, r)
	case r.URL.Path == "/health/live":
		onlyRead(s.handleLive)(w, r)
	case r.URL.Path == "/health/ready":
		onlyRead(s.handleReady)(w, r)
	case r.URL.Path == "/openapi.json" && s.openAPI != nil:
		onlyRead(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(s.openAPI) // the only error is that the client has left
		})(w, r)
	default:
		leave, ok := s.enter(r.Context(), isStream)
		if !ok {
			refuse(w, r, errTooManyCalls)
			return
		}
		defer leave()
		r, end := s.bound(w, r, isStream)
		defer end()
		s.gateway.ServeHTTP(w, r)
	}
}

// handleLive reports whether this process still works, or should be restarted.
func (s *Server) handleLive(w http.ResponseWriter, r *http.Request) {
	if err := s.live(); err != nil {
		s.log.ErrorContext(r.Context(), "server: stuck", "err", err)
		writeHealth(w, http.StatusServiceUnavailable, "stuck")
		return
	}
	writeHealth(w, http.StatusOK, "live")
}

// enter reserves a place for a call, and returns the function that frees it;
// false if all places are taken. Streams have half as many places, because they
// last long. A rejected call is counted and logged here, because no interceptor
// sees it.
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

// bound limits the memory that a request can hold, until end is called. The
// request of a stream must be small: it must not take a place for large bodies
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

// limitTime sets the read and the write deadline of a request. The deadline of
// the call is not enough. It starts after the request is received, and does not
// interrupt a client that stops sending or reading.
func (s *Server) limitTime(w http.ResponseWriter, r *http.Request, isStream bool) {
	limit := s.cfg.CallTimeout
	if isStream {
		limit = s.cfg.StreamLifetime
	}
	deadline := time.Now().Add(limit + limitGrace)
	control := http.NewResponseController(w)
	err := control.SetWriteDeadline(deadline)
	// net/http reads ahead on a request without a body. A read deadline would
	// end that read, and with it a stream that is still running.
	if r.Body != http.NoBody {
		if !s.streaming[r.URL.Path] { // a REST stream has no long body
			deadline = time.Now().Add(s.cfg.CallTimeout + limitGrace)
		}
		err = errors.Join(err, control.SetReadDeadline(deadline))
	}
	if err != nil {
		s.log.WarnContext(r.Context(), "server: no time limit for a request", "err", err)
	}
}

// refuseGRPC rejects a call before any handler runs, with a trailers-only
// response (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
func refuseGRPC(w http.ResponseWriter, st *status.Status) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", strconv.Itoa(int(st.Code())))
	w.Header().Set("Grpc-Message", st.Message())
	if details, err := proto.Marshal(st.Proto()); err == nil {
		w.Header().Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	}
	w.WriteHeader(http.StatusOK)
}

// onlyRead rejects methods other than GET and HEAD.
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

// writeHealthOf writes a JSON object with sorted keys.
func writeHealthOf(w http.ResponseWriter, code int, of map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(of) // the only error is that the client has left
}
