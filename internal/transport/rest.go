package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/problem"
)

// makeGateway makes the REST API as api/proto maps it. Each request becomes a gRPC call
// over a connection inside the process, which skips net/http and its cost.
func (s *Server) makeGateway() (err error) {
	s.conn, err = grpc.NewClient("passthrough:in-process",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.inProcess.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(checkQuery),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect gateway: %w", err)
	}
	none := func(string) (string, bool) { return "", false }
	shared := []runtime.ServeMuxOption{
		runtime.WithDisablePathLengthFallback(), // no GET by POST, and no X-HTTP-Method-Override
		// A proxy's rule about a path must hold: what is escaped is no part of a verb or a collection.
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptReserved),
	}
	s.allow = runtime.NewServeMux(append(shared,
		runtime.WithMiddlewares(func(runtime.HandlerFunc) runtime.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request, _ map[string]string) { w.Header().Add("Allow", r.Method) }
		}),
		runtime.WithRoutingErrorHandler(func(context.Context, *runtime.ServeMux, runtime.Marshaler, http.ResponseWriter, *http.Request, int) {}),
	)...)
	s.mux = runtime.NewServeMux(append(shared,
		// Empty numbers, strings and lists are written, too. Unset messages are left out:
		// null would look like a value.
		runtime.WithMarshalerOption(runtime.MIMEWildcard, lines{&runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true}}}),
		runtime.WithIncomingHeaderMatcher(func(name string) (string, bool) { // besides Authorization and addresses
			return strings.ToLower(name), slices.Contains([]string{"Traceparent", "Tracestate", "X-Request-Id", "X-Serverless-Authorization"}, name)
		}),
		runtime.WithOutgoingHeaderMatcher(none),
		runtime.WithOutgoingTrailerMatcher(none),
		runtime.WithRoutingErrorHandler(s.routingError),
		runtime.WithErrorHandler(s.gatewayError),
	)...)
	for _, service := range s.deps.Services {
		if service.Gateway != nil {
			err = errors.Join(err, service.Gateway(context.Background(), s.mux, s.conn), service.Gateway(context.Background(), s.allow, s.conn))
		}
	}
	return err
}

func (s *Server) serveREST(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	r = r.WithContext(context.WithValue(r.Context(), queryKey{}, query))
	r.Form, r.Body = query, http.MaxBytesReader(w, r.Body, int64(s.cfg.MaxReceive))
	r.Header.Del("Content-Type") // a body is JSON, whatever it is called
	bodyErr := io.EOF
	if r.Method == http.MethodGet || r.Method == http.MethodDelete {
		_, bodyErr = io.CopyN(io.Discard, r.Body, 1) // a header without a length does not say that the body is empty (RFC 9113, 8.1)
	}
	switch {
	case err != nil:
		err = problem.Errorf(problem.Invalid, "the query cannot be read: %v", err)
	case !utf8.ValidString(r.URL.Path):
		err = problem.InvalidField("path", "must be UTF-8")
	case !errors.Is(bodyErr, io.EOF):
		err = problem.InvalidField("body", "%s has none: send parameters in the query", r.Method)
	case r.Header["If-Match"] != nil:
		err = problem.InvalidField("If-Match", "is not read: send the etag in the request")
	case !strings.EqualFold(cmp.Or(r.Header.Get("Content-Encoding"), "identity"), "identity"):
		err = errEncoded
	}
	if err != nil {
		s.reject(w, r, err)
		return
	}
	if isStream(r) { // proxies must not buffer it
		s.extend(w, r) // only now: its body may never come
		w.Header().Set("X-Accel-Buffering", "no")
		w.Header().Set("Cache-Control", "no-store")
	} else if r.Method == http.MethodHead && !strings.HasSuffix(r.URL.Path, ":watch") {
		r.Method = http.MethodGet // net/http sends no body for a HEAD request
	}
	for i, forwarded := range r.Header["X-Forwarded-For"] {
		r.Header["X-Forwarded-For"][i] = notASCII.ReplaceAllString(forwarded, " ") // because of it the gateway would drop the header
	}
	s.mux.ServeHTTP(w, r)
}

var notASCII = regexp.MustCompile("[^ -~]")

// queryKey is the key of the query of a REST call, in its context: the parameters that strictQuery has not yet read.
type queryKey struct{}

// checkQuery makes the call of a REST request. It rejects the query of a method without query
// parameters, which the gateway would ignore. Its error has the form that gatewayError reads.
func checkQuery(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if query, _ := ctx.Value(queryKey{}).(url.Values); len(query) > 0 {
		return status.Error(codes.InvalidArgument, "query: unknown parameter: this method has none")
	}
	return call(ctx, method, request, response, conn, options...)
}

// lines is the gateway's JSON. A stream has a line for each message, and an error that ends
// the stream has the form of every other error.
type lines struct{ *runtime.JSONPb }

func (l lines) Marshal(v any) ([]byte, error) {
	if chunk, ok := v.(map[string]proto.Message); ok { // the gateway has this type only for such an error
		st := status.FromProto(chunk["error"].(*spb.Status)) //nolint:forcetypeassert // as above
		return json.Marshal(errorBody(st, httpStatus(st)))   //nolint:wrapcheck // of strings and numbers
	}
	return l.JSONPb.Marshal(v) //nolint:wrapcheck // the gateway's own
}

func (lines) StreamContentType(any) string { return "application/x-ndjson" }

// NewDecoder returns a decoder of a body, which is one value. An empty body is io.EOF, and an
// empty message. An error about a field has the form that gatewayError reads.
func (l lines) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		body, err := io.ReadAll(r)
		switch {
		case err != nil:
			return err //nolint:wrapcheck // a reader's own
		case len(bytes.TrimSpace(body)) == 0:
			return io.EOF
		case bytes.HasPrefix(body, []byte("\ufeff")):
			return errors.New("body: begins with a byte order mark")
		case !json.Valid(body):
			return json.Unmarshal(body, new(json.RawMessage)) //nolint:wrapcheck // names the place
		}
		if err = l.Unmarshal(body, v); err == nil {
			return nil
		}
		message, ok := v.(proto.Message)
		if !ok { // a pointer to the message of a field, which Unmarshal has made
			message, ok = reflect.TypeAssert[proto.Message](reflect.ValueOf(v).Elem())
		}
		_, rule, _ := strings.Cut(err.Error(), "): ") // after its place in the body
		err = fmt.Errorf("body: %s", rule)
		if ok {
			err = cmp.Or(misfit(body, message.ProtoReflect()), err)
		}
		return err
	})
}

// misfit returns an error about a field of JSON that a message cannot have, or nil.
func misfit(body []byte, message protoreflect.Message) error {
	var values map[string]json.RawMessage
	_ = json.Unmarshal(body, &values) // what is no object has no fields
	for _, key := range slices.Sorted(maps.Keys(values)) {
		field := cmp.Or(message.Descriptor().Fields().ByJSONName(key), message.Descriptor().Fields().ByTextName(key))
		if field == nil {
			return fmt.Errorf("%s: unknown field", url.QueryEscape(key))
		}
		alone, _ := json.Marshal(map[string]json.RawMessage{key: values[key]}) // cannot fail for what was JSON
		if protojson.Unmarshal(alone, message.New().Interface()) == nil {
			continue
		}
		if aip.IsPartial(field) {
			if err := misfit(values[key], message.NewField(field).Message()); err != nil {
				return fmt.Errorf("%s.%w", key, err)
			}
		}
		return fmt.Errorf("%s: cannot be %.100s", key, values[key])
	}
	return nil
}

// routingError handles a request whose path or method has no handler.
func (s *Server) routingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, httpStatus int) {
	err := errPathUnknown
	if httpStatus == http.StatusMethodNotAllowed {
		err = errMethodUnknown
		other := r.WithContext(r.Context())
		for _, other.Method = range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			s.allow.ServeHTTP(w, other)
		}
		w.Header().Set("Allow", strings.Join(w.Header().Values("Allow"), ", ")) // RFC 9110, 15.5.6
	}
	s.reject(w, r, err)
}

// gatewayError handles the error of a call, or of a request that cannot become a call. For
// the latter the gateway has only a text such as "field: rule".
func (s *Server) gatewayError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(err)
	field, rule, isField := strings.Cut(st.Message(), ": ")
	switch {
	case st.Code() == codes.ResourceExhausted && len(st.Details()) == 0, st.Message() == (&http.MaxBytesError{}).Error(): // of gRPC, or of the body
		s.reject(w, r, errTooLarge)
	case st.Code() != codes.InvalidArgument || len(st.Details()) > 0:
		writeError(w, r, err)
	case isField && !strings.Contains(field, " "):
		s.reject(w, r, problem.InvalidField(field, "%s", rule))
	default:
		s.reject(w, r, problem.Errorf(problem.Invalid, "the request cannot be read: %s", st.Message()))
	}
}

// reject writes the error of a REST request that never becomes a call, and logs it. The line
// omits the path and the query, which can contain anything.
func (s *Server) reject(w http.ResponseWriter, r *http.Request, err error) {
	writeError(w, r, err)
	address, _, _ := net.SplitHostPort(r.RemoteAddr)
	s.deps.Log.LogAttrs(r.Context(), slog.LevelInfo, "server: request", attr("method", "REST "+r.Method),
		attr("code", status.Code(toStatus(err)).String()), attr("caller", address), attr("x_request_id", r.Header.Get("X-Request-Id")))
}

// writeError writes an error response. Over gRPC it has only trailers
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(toStatus(err))
	if isGRPC(r) {
		details, _ := proto.Marshal(st.Proto()) // cannot fail for what toStatus makes
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", strconv.Itoa(int(st.Code())))
		w.Header().Set("Grpc-Message", st.Message())
		w.Header().Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
		return
	}
	code := httpStatus(st)
	if st.Code() == codes.Unauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if retry := detail[*errdetails.RetryInfo](st); retry != nil {
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, retry.GetRetryDelay().GetSeconds()), 10))
	}
	writeJSON(w, code, errorBody(st, code))
}

// errorBody returns an error in the form of AIP-193. Its code is the HTTP status, and its
// status the gRPC code.
func errorBody(st *status.Status, httpStatus int) any {
	details := make([]json.RawMessage, 0, len(st.Proto().GetDetails()))
	for _, packed := range st.Proto().GetDetails() {
		if text, err := protojson.Marshal(packed); err == nil { // fails for a type that is not linked in
			details = append(details, text)
		}
	}
	return map[string]any{"error": map[string]any{
		"code": httpStatus, "status": rpccode.Code(st.Proto().GetCode()).String(), "message": st.Message(), "details": details,
	}}
}

// strictQuery is the gateway's parser of a query, except that it rejects unknown
// parameters: a caller who misspells etag would otherwise rely on a check that
// never runs. Its errors have the form "field: rule".
type strictQuery struct{ runtime.DefaultQueryParser }

// The gateway has one parser for all muxes of the process.
func init() { runtime.SetQueryParameterParser(new(strictQuery))(nil) }

// Parse adds the query to a message. taken has the fields of the path and of the body.
func (q *strictQuery) Parse(message proto.Message, values url.Values, taken *utilities.DoubleArray) error {
	for key, texts := range values {
		path := protoName(key)
		_, err := fieldmaskpb.New(message, path) // fails if the message has no such field
		if err != nil || taken.HasCommonPrefix(strings.Split(path, ".")) {
			return fmt.Errorf("%s: unknown parameter", url.QueryEscape(key))
		}
		alone, value := message.ProtoReflect().New().Interface(), strings.Join(texts, ", ")
		if q.DefaultQueryParser.Parse(alone, url.Values{key: texts}, taken) != nil || !utf8.ValidString(value) {
			return fmt.Errorf("%s: cannot be %q", key, value) // the parser's own error names Go's functions
		}
	}
	if err := q.DefaultQueryParser.Parse(message, values, taken); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	if u, ok := aip.UpdateOf(message); ok && u.Mask != nil {
		for i, path := range u.Mask.GetPaths() {
			u.Mask.Paths[i] = protoName(path)
		}
		u.Mask.Paths = slices.DeleteFunc(u.Mask.Paths, func(path string) bool { return path == "" }) // of an empty mask or body
	}
	clear(values) // for checkQuery
	return nil
}

var upper = regexp.MustCompile("[A-Z]")

// protoName returns a path of JSON names, such as filter.publishYear, in the names of proto.
func protoName(path string) string {
	return upper.ReplaceAllStringFunc(path, func(letter string) string { return "_" + strings.ToLower(letter) })
}
