package port

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/problem"
)

// passedOn are the headers that become gRPC metadata, besides Authorization, the host and
// the address of the caller, which the gateway always adds.
var passedOn = []string{"Traceparent", "Tracestate", "X-Request-Id", "X-Serverless-Authorization"}

// makeGateway makes the REST API as api/proto maps it. Each request becomes a gRPC call
// over a connection inside the process, which skips net/http and its cost.
func (s *Server) makeGateway() (err error) {
	s.conn, err = grpc.NewClient("passthrough:in-process",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.inProcess.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(checkREST),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect gateway: %w", err)
	}
	strictQueries()
	none := func(string) (string, bool) { return "", false }
	s.mux = runtime.NewServeMux(
		// Empty numbers, strings and lists are written too, so that a client need not
		// guess. Unset messages, such as delete_time, are left out, because null would
		// look like a value.
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &strictJSON{&runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true}}}),
		runtime.WithIncomingHeaderMatcher(func(name string) (string, bool) { return strings.ToLower(name), slices.Contains(passedOn, name) }),
		runtime.WithOutgoingHeaderMatcher(none),
		runtime.WithOutgoingTrailerMatcher(none),
		runtime.WithMiddlewares(keepRequest),
		runtime.WithForwardResponseOption(writeETag),
		runtime.WithRoutingErrorHandler(s.routingError),
		runtime.WithErrorHandler(s.gatewayError),
		runtime.WithDisablePathLengthFallback(), // no GET by POST, and no X-HTTP-Method-Override
	)
	for _, service := range s.deps.Services {
		if service.Gateway == nil {
			continue
		}
		if err := service.Gateway(s.mux, s.conn); err != nil {
			return fmt.Errorf("register gateway: %w", err)
		}
	}
	return nil
}

// serveREST serves a REST request.
func (s *Server) serveREST(w http.ResponseWriter, r *http.Request) {
	switch {
	case !utf8.ValidString(r.URL.Path):
		s.reject(w, r, problem.InvalidField("path", "must be UTF-8"))
		return
	case r.ContentLength != 0 && (r.Method == http.MethodGet || r.Method == http.MethodDelete):
		s.reject(w, r, problem.InvalidField("body", "%s has none: what it takes are parameters of the query", r.Method))
		return
	case isStream(r): // proxies must not buffer it
		w.Header().Set("X-Accel-Buffering", "no")
		w.Header().Set("Cache-Control", "no-store")
	case r.Method == http.MethodHead && !strings.HasSuffix(r.URL.Path, ":watch"):
		r = r.WithContext(r.Context()) // a copy: net/http sends no body for a HEAD request
		r.Method = http.MethodGet
	}
	r.Body = http.MaxBytesReader(w, r.Body, int64(s.cfg.MaxReceive))
	s.mux.ServeHTTP(w, r)
}

// restKey is the context key of a *restRequest.
type restKey struct{}

type restRequest struct{ *http.Request }

// keepRequest is around every handler of the gateway: checkREST needs the request as the
// handler has parsed it.
func keepRequest(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, path map[string]string) {
		rest := new(restRequest)
		rest.Request = r.WithContext(context.WithValue(r.Context(), restKey{}, rest))
		next(w, rest.Request, path)
	}
}

// checkREST makes the call of a REST request, unless its query or its If-Match, which the
// caller relies on, would be ignored. Its errors have the form that gatewayError reads.
func checkREST(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
	rest, _ := ctx.Value(restKey{}).(*restRequest)
	message, _ := request.(proto.Message)
	if rest.Form == nil && rest.URL.RawQuery != "" { // the gateway parses only the query of a method that has parameters
		return status.Error(codes.InvalidArgument, "query: unknown parameter: this method has none")
	}
	if tags := rest.Header["If-Match"]; tags != nil && !takeIfMatch(message, strings.Join(tags, ",")) {
		return status.Error(codes.InvalidArgument, "If-Match: must be the etag of a response or *, of a resource that the method changes, and no other than in the request")
	}
	return call(ctx, method, request, response, conn, options...)
}

// takeIfMatch copies an etag into the request, or into its resource if it is an update. "*"
// matches any existing resource, so it needs no etag. It returns false if it cannot.
func takeIfMatch(request proto.Message, tag string) bool {
	holder := request.ProtoReflect()
	if u, ok := aip.UpdateOf(request); ok {
		holder = u.Resource
	}
	field := holder.Descriptor().Fields().ByName("etag")
	switch {
	case field == nil || !utf8.ValidString(tag) || !strings.HasPrefix(tag, `"`) && tag != "*":
		return false
	case tag == "*":
		return true
	case holder.Get(field).String() != "" && holder.Get(field).String() != tag:
		return false
	}
	holder.Set(field, protoreflect.ValueOfString(tag))
	return true
}

// writeETag sets the ETag header of a resource.
func writeETag(_ context.Context, w http.ResponseWriter, response proto.Message) error {
	if resource, ok := response.(interface{ GetEtag() string }); ok && resource.GetEtag() != "" {
		w.Header().Set("ETag", resource.GetEtag())
	}
	return nil
}

// strictJSON is a JSON codec that rejects bytes after the body. It writes an error in the
// middle of a stream in the same form as every other error.
type strictJSON struct{ *runtime.JSONPb }

func (j *strictJSON) Marshal(v any) ([]byte, error) {
	if chunk, ok := v.(map[string]proto.Message); ok { // the type that handleForwardResponseStreamError of the gateway passes
		if st, ok := chunk["error"].(*spb.Status); ok {
			return errorBody(status.FromProto(st), httpStatus(status.FromProto(st))), nil
		}
	}
	return j.JSONPb.Marshal(v) //nolint:wrapcheck // the gateway's own
}

// StreamContentType returns the content type of a stream: one line of JSON per message.
func (j *strictJSON) StreamContentType(any) string { return "application/x-ndjson" }

func (j *strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		text, err := io.ReadAll(r)
		if err == nil && len(text) == 0 {
			return io.EOF // no body may be valid
		}
		if err == nil {
			err = cmp.Or(json.Unmarshal(text, new(json.RawMessage)), j.Unmarshal(text, v))
		}
		if err != nil { // protobuf puts a random space into its errors
			return errors.New("body: " + strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: "))
		}
		return nil
	})
}

// routingError handles a request whose path or method has no handler.
func (s *Server) routingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, httpStatus int) {
	if httpStatus == http.StatusMethodNotAllowed {
		s.reject(w, r, errMethodUnknown)
		return
	}
	s.reject(w, r, errPathUnknown)
}

// gatewayError handles the error of a call, and of a request of which the gateway cannot
// make a call. Of the latter it has only the text, such as "field: rule".
func (s *Server) gatewayError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(err)
	field, rule, isField := strings.Cut(st.Message(), ": ")
	switch {
	case st.Code() != codes.InvalidArgument || len(st.Details()) > 0:
		writeError(w, r, err)
	case strings.HasSuffix(st.Message(), (&http.MaxBytesError{}).Error()):
		s.reject(w, r, errTooLarge)
	case isField && !strings.Contains(field, " "):
		s.reject(w, r, problem.InvalidField(field, "%s", rule))
	default:
		s.reject(w, r, problem.Errorf(problem.Invalid, "%s", st.Message()))
	}
}

// reject writes the error of a REST request that never becomes a call, and logs it. The line
// omits the path and the query, which can contain anything.
func (s *Server) reject(w http.ResponseWriter, r *http.Request, err error) {
	writeError(w, r, err)
	address, _, _ := net.SplitHostPort(r.RemoteAddr)
	s.deps.Log.LogAttrs(r.Context(), slog.LevelInfo, "server: request", slog.String("method", "REST "+cut(r.Method)),
		slog.String("code", status.Code(toStatus(err)).String()), slog.String("caller", address), slog.String("x_request_id", cut(r.Header.Get("X-Request-Id"))))
}

// writeError writes an error response.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(toStatus(err))
	code := httpStatus(st)
	if st.Code() == codes.Aborted && r.Header.Get("If-Match") != "" {
		code = http.StatusPreconditionFailed
	}
	if st.Code() == codes.Unauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if retry := detail[*errdetails.RetryInfo](st); retry != nil {
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, retry.GetRetryDelay().GetSeconds()), 10))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(errorBody(st, code), '\n')) // the only error is that the client has left
}

// errorBody returns the JSON of an error in the form of AIP-193: {"error": {"code",
// "status", "message", "details"}}. The code is the HTTP status, and the status is the
// gRPC code.
func errorBody(st *status.Status, httpStatus int) []byte {
	details := make([]json.RawMessage, 0, len(st.Proto().GetDetails()))
	for _, packed := range st.Proto().GetDetails() {
		if text, err := protojson.Marshal(packed); err == nil { // fails for a type that is not linked in
			details = append(details, text)
		}
	}
	text, err := json.Marshal(map[string]any{"error": map[string]any{
		"code": httpStatus, "status": code.Code(st.Proto().GetCode()).String(), "message": st.Message(), "details": details,
	}})
	if err != nil { // cannot happen with strings and numbers
		return []byte("{}")
	}
	return text
}
