package pubsublocal

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"connectrpc.com/vanguard"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // so that error details can be written as JSON
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxJSONBytes is enough for a publish request of 10 MiB, because base64 makes four bytes of three.
const maxJSONBytes = 15 << 20

// serverTimeoutKey is the gRPC metadata key for the seconds of the header X-Server-Timeout. Pull reads it.
const serverTimeoutKey = "x-server-timeout"

// systemParameters are the query parameters of every Google API. They are not fields, and this server ignores them:
// https://cloud.google.com/apis/docs/system-parameters.
var systemParameters = []string{
	"$.xgafv", "$alt", "$prettyPrint", "access_token", "alt", "callback", "fields", "key", "oauth_token",
	"prettyPrint", "quotaUser", "uploadType", "upload_protocol",
}

// newHTTPHandler serves the JSON API, at the paths of the google.api.http annotations of Pub/Sub. It calls
// grpcServer, which must have these services. Errors have the form of Google's APIs. GET / returns Ok, like the
// emulator.
func newHTTPHandler(grpcServer *grpc.Server) (http.Handler, error) {
	services := make([]*vanguard.Service, 0, 3)
	for _, name := range []string{
		pubsubpb.Publisher_ServiceDesc.ServiceName, pubsubpb.Subscriber_ServiceDesc.ServiceName,
		pubsubpb.SchemaService_ServiceDesc.ServiceName,
	} {
		services = append(services, vanguard.NewService(name, watchAnswers(grpcServer),
			vanguard.WithTargetProtocols(vanguard.ProtocolGRPC), vanguard.WithTargetCodecs(vanguard.CodecProto)))
	}
	transcoder, err := vanguard.NewTranscoder(services,
		vanguard.WithCodec(func(r vanguard.TypeResolver) vanguard.Codec {
			return jsonCodec{vanguard.JSONCodec{
				MarshalOptions:   protojson.MarshalOptions{Resolver: r},
				UnmarshalOptions: protojson.UnmarshalOptions{Resolver: r},
			}}
		}))
	if err != nil {
		return nil, fmt.Errorf("make JSON API: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "Ok\n") // the error is only that the client has disconnected
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, codes.NotFound, fmt.Sprintf("no such path: %s %s", r.Method, r.URL.Path), nil)
	})
	api := serveJSON(transcoder)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The mux would clean paths and redirect, but a resource name is not a file name.
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			api.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}), nil
}

// jsonCodec is a codec for proto3 JSON that refuses unknown fields.
type jsonCodec struct{ vanguard.JSONCodec }

// Unmarshal implements vanguard.Codec.
func (c jsonCodec) Unmarshal(data []byte, m proto.Message) error {
	return jsonError(c.JSONCodec.Unmarshal(data, m), data)
}

// UnmarshalField implements vanguard.RESTCodec.
func (c jsonCodec) UnmarshalField(data []byte, m proto.Message, field protoreflect.FieldDescriptor) error {
	return jsonError(c.JSONCodec.UnmarshalField(data, m, field), data)
}

var (
	jsonPosition = regexp.MustCompile(`^syntax error \(line (\d+):(\d+)\)`)
	jsonName     = regexp.MustCompile(`"(\w+)"\s*:`)
)

// jsonError makes a stable error of one from protojson. Those start with "proto:" and one of two spaces, chosen at
// random. For a syntax error they have only a position, so jsonError adds the name of the field. [N7]
func jsonError(err error, data []byte) error {
	if err == nil {
		return nil
	}
	text := strings.Trim(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	if at := jsonPosition.FindStringSubmatch(text); at != nil {
		line, _ := strconv.Atoi(at[1]) // the pattern matches only digits
		column, _ := strconv.Atoi(at[2])
		lines := bytes.SplitAfter(data, []byte("\n"))
		before := bytes.Join(lines[:min(line, len(lines))], nil)
		before = before[:len(before)-max(0, len(lines[min(line, len(lines))-1])-column+1)]
		if names := jsonName.FindAllSubmatch(before, -1); len(names) > 0 {
			text = fmt.Sprintf("at %q: %s", names[len(names)-1][1], text)
		}
	}
	return errors.New("Invalid JSON payload received: " + text)
}

// serveJSON adds to a transcoder what Google's front end does.
func serveJSON(transcoder http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := readBody(r)
		if err != nil {
			writeError(w, codes.InvalidArgument, err.Error(), nil)
			return
		}
		if strings.HasSuffix(r.URL.Path, ":detach") && string(bytes.TrimSpace(body)) == "{}" {
			body = nil // the method has no body, but many clients send one with every POST
		}
		// The methods get the other headers as metadata, and ignore them.
		header := http.Header{}
		for name, values := range r.Header {
			switch name {
			case "Accept-Encoding", "Content-Type", "Content-Encoding", "Content-Length", "Connect-Protocol-Version":
				// The response is not compressed. Every request is JSON, whatever its type says: curl sends another
				// type by default. The transcoder would also accept other protocols, which this server does not
				// offer.
			case "X-Server-Timeout":
				// This spelling hides the header from the transcoder, which would use it as the deadline of the
				// call. Pull would then return an error instead of an empty list.
				header[serverTimeoutKey] = values
			default:
				header[name] = values
			}
		}
		if err := checkServerTimeout(r.Header.Get("X-Server-Timeout")); err != nil {
			writeError(w, codes.InvalidArgument, err.Error(), nil)
			return
		}
		var reached progress
		passed := r.Clone(context.WithValue(r.Context(), progressKey{}, &reached))
		passed.Header = header
		passed.URL.Path = r.URL.EscapedPath() // the transcoder unescapes the path
		passed.URL.RawQuery = dropSystemParameters(r.URL.RawQuery)
		passed.Body, passed.ContentLength, passed.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil

		answer := &errorRewriter{ResponseWriter: w, progress: &reached}
		transcoder.ServeHTTP(answer, passed)
		answer.finish(r)
	})
}

// progress records whether the gRPC server has responded to a request. The transcoder converts a request while the
// gRPC server reads it, and reports a bad request as UNKNOWN. With progress, such an error is known to come from
// the transcoder.
type progress struct{ answered atomic.Bool } // set by watchedAnswer

type progressKey struct{}

// watchAnswers marks the progress of a request when next responds to it.
func watchAnswers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, ok := r.Context().Value(progressKey{}).(*progress); ok {
			w = &watchedAnswer{ResponseWriter: w, progress: p}
		}
		next.ServeHTTP(w, r)
	})
}

type watchedAnswer struct {
	http.ResponseWriter

	progress *progress
}

// WriteHeader implements http.ResponseWriter.
func (w *watchedAnswer) WriteHeader(code int) {
	w.progress.answered.Store(true)
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *watchedAnswer) Write(b []byte) (int, error) {
	w.progress.answered.Store(true)
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, which the gRPC server needs.
func (w *watchedAnswer) Flush() {
	w.progress.answered.Store(true)
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the writer of the transcoder can flush
}

func readBody(r *http.Request) ([]byte, error) {
	source := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, fmt.Errorf("request body: is not gzip, as its Content-Encoding says: %w", err)
		}
		source = unzipped
	}
	body, err := io.ReadAll(io.LimitReader(source, maxJSONBytes+1))
	if err != nil {
		return nil, fmt.Errorf("request body: %w", err)
	}
	if len(body) > maxJSONBytes {
		return nil, errors.New("Request payload size exceeds the limit: 10485760 bytes.") //nolint:revive,staticcheck // Google's text
	}
	return body, nil
}

func checkServerTimeout(text string) error {
	if text == "" {
		return nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err != nil || !(seconds >= 0) {
		return fmt.Errorf("header X-Server-Timeout: %q is no number of seconds", text)
	}
	return nil
}

// dropSystemParameters removes the system parameters from a query. It does not parse the rest, because net/url
// refuses the semicolon in "$alt=json;enum-encoding=int".
func dropSystemParameters(rawQuery string) string {
	kept := slices.DeleteFunc(strings.Split(rawQuery, "&"), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		unescaped, err := url.QueryUnescape(name)
		return err == nil && slices.Contains(systemParameters, unescaped)
	})
	return strings.Join(kept, "&")
}

// errorRewriter passes a success through. It buffers an error, and finish writes it in the form of Google's APIs.
type errorRewriter struct {
	http.ResponseWriter

	progress *progress
	code     int          // 0: not written yet
	answered bool         // the gRPC server, not the transcoder, has responded
	body     bytes.Buffer // an error
}

// WriteHeader implements http.ResponseWriter.
func (w *errorRewriter) WriteHeader(code int) {
	if w.code != 0 {
		return
	}
	w.code, w.answered = code, w.progress.answered.Load()
	if code < http.StatusBadRequest {
		w.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (w *errorRewriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.code < http.StatusBadRequest {
		return w.ResponseWriter.Write(b)
	}
	return w.body.Write(b)
}

// Flush implements http.Flusher, which the transcoder needs. Responses of unary calls need no flush.
func (w *errorRewriter) Flush() {}

// finish writes the buffered error, if there is one.
func (w *errorRewriter) finish(r *http.Request) {
	if w.code < http.StatusBadRequest {
		return
	}
	for name := range w.ResponseWriter.Header() {
		if name != "Vary" && !strings.HasPrefix(name, "Access-Control-") { // of guard
			w.ResponseWriter.Header().Del(name) // it describes the body that is replaced
		}
	}
	var status struct {
		Code    codes.Code
		Message string
		Details []json.RawMessage
	}
	switch err := json.Unmarshal(w.body.Bytes(), &status); {
	case err == nil && status.Code == codes.Unknown && !w.answered: // the transcoder could not convert the request
		writeError(w.ResponseWriter, codes.InvalidArgument, status.Message, nil)
	case err == nil && status.Code != codes.OK:
		writeError(w.ResponseWriter, status.Code, status.Message, status.Details)
	case w.code == http.StatusNotFound || w.code == http.StatusMethodNotAllowed:
		writeError(w.ResponseWriter, codes.NotFound, fmt.Sprintf("no such path: %s %s", r.Method, r.URL.Path), nil)
	case w.code < http.StatusInternalServerError:
		writeError(w.ResponseWriter, codes.InvalidArgument, strings.TrimSpace(w.body.String()), nil)
	default:
		writeError(w.ResponseWriter, codes.Internal, strings.TrimSpace(w.body.String()), nil)
	}
}

// writeError writes an error in the form of Google's APIs: https://cloud.google.com/apis/design/errors.
func writeError(w http.ResponseWriter, code codes.Code, message string, details []json.RawMessage) {
	type detailed struct {
		Code    int               `json:"code"`
		Message string            `json:"message"`
		Status  string            `json:"status"`
		Details []json.RawMessage `json:"details,omitempty"`
	}
	answer := struct {
		Error detailed `json:"error"`
	}{detailed{Code: httpCode(code), Message: message, Status: rpccode.Code(code).String(), Details: details}} //nolint:gosec // a code is at most 16
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(answer.Error.Code)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(answer) // the error is only that the client has disconnected
}

// httpCode returns the HTTP status of a gRPC code, as google/rpc/code.proto maps them.
func httpCode(code codes.Code) int {
	switch code {
	case codes.OK:
		return http.StatusOK
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Canceled:
		return 499 // nginx's "client closed request", which has no name in net/http
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}
