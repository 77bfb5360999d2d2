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

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"connectrpc.com/vanguard"
	"google.golang.org/genproto/googleapis/api/annotations"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // the details of errors are written as JSON
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxJSONBytes holds a publish request of 10 MiB whose data is in base64, which makes four bytes of three.
const maxJSONBytes = 15 << 20

// serverTimeoutKey is the gRPC metadata that carries the seconds of the header X-Server-Timeout to Pull.
const serverTimeoutKey = "x-server-timeout"

// systemParameters are query parameters that every Google API knows and that
// are no fields: https://cloud.google.com/apis/docs/system-parameters. We ignore them.
var systemParameters = []string{
	"$.xgafv", "$alt", "$prettyPrint", "access_token", "alt", "callback", "fields", "key", "oauth_token",
	"prettyPrint", "quotaUser", "uploadType", "upload_protocol",
}

// newHTTPHandler serves the JSON API: the paths that the google.api.http
// annotations of Pub/Sub and IAM name, as calls of grpcServer, which has these
// services. Errors look as those of Google's APIs. The paths below /admin/ go to
// admin; nil: there are none. GET / answers Ok, as the emulator does.
func newHTTPHandler(grpcServer *grpc.Server, admin http.Handler) (http.Handler, error) {
	services := make([]*vanguard.Service, 0, 4)
	for _, name := range []string{
		pubsubpb.Publisher_ServiceDesc.ServiceName, pubsubpb.Subscriber_ServiceDesc.ServiceName,
		pubsubpb.SchemaService_ServiceDesc.ServiceName, iampb.IAMPolicy_ServiceDesc.ServiceName,
	} {
		services = append(services, vanguard.NewService(name, watchAnswers(grpcServer),
			vanguard.WithTargetProtocols(vanguard.ProtocolGRPC), vanguard.WithTargetCodecs(vanguard.CodecProto)))
	}
	transcoder, err := vanguard.NewTranscoder(services,
		vanguard.WithRules(iamRules()...),
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
		_, _ = io.WriteString(w, "Ok\n") // a caller who has gone needs no answer
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, codes.NotFound, fmt.Sprintf("no such path: %s %s", r.Method, r.URL.Path), nil)
	})
	if admin != nil {
		mux.Handle("/admin/", admin)
	}
	api := serveJSON(transcoder)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Not through the mux, which would clean paths and redirect: names of resources are not file names.
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			api.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}), nil
}

// iamRules are the paths of google.iam.v1 as Pub/Sub's service configuration
// has them; the annotations of that package are for no service in particular.
func iamRules() []*annotations.HttpRule {
	var rules []*annotations.HttpRule
	for _, collection := range []string{"topics", "subscriptions", "snapshots", "schemas"} {
		path := "/v1/{resource=projects/*/" + collection + "/*}:"
		rules = append(rules,
			&annotations.HttpRule{
				Selector: "google.iam.v1.IAMPolicy.GetIamPolicy",
				Pattern:  &annotations.HttpRule_Get{Get: path + "getIamPolicy"},
			},
			&annotations.HttpRule{
				Selector: "google.iam.v1.IAMPolicy.SetIamPolicy",
				Pattern:  &annotations.HttpRule_Post{Post: path + "setIamPolicy"}, Body: "*",
			},
			&annotations.HttpRule{
				Selector: "google.iam.v1.IAMPolicy.TestIamPermissions",
				Pattern:  &annotations.HttpRule_Post{Post: path + "testIamPermissions"}, Body: "*",
			})
	}
	return rules
}

// jsonCodec is proto3 JSON that refuses unknown fields.
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

// jsonError says in our words what protojson found. Its texts start with
// "proto:" and one of two spaces, so that nobody relies on them, and name the
// field, unless the token is wrong, of which they have the position only. [N7]
func jsonError(err error, data []byte) error {
	if err == nil {
		return nil
	}
	text := strings.Trim(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	if at := jsonPosition.FindStringSubmatch(text); at != nil {
		line, _ := strconv.Atoi(at[1]) // they are digits
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

// serveJSON adds to a transcoder what Google's own front end does.
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
		// The rest of the headers reaches the methods as metadata, unread.
		header := http.Header{}
		for name, values := range r.Header {
			switch name {
			case "Accept-Encoding", "Content-Type", "Content-Encoding", "Content-Length", "Connect-Protocol-Version":
				// We answer plainly, and take any type for JSON, also what curl says by default. The transcoder
				// would speak other protocols, too; they have no place here.
			case "X-Server-Timeout":
				// Under this spelling the transcoder leaves it alone, which would make it the deadline of the call:
				// an error at the moment at which Pull answers with an empty list.
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
		passed.URL.Path = r.URL.EscapedPath() // the transcoder unescapes it
		passed.URL.RawQuery = dropSystemParameters(r.URL.RawQuery)
		passed.Body, passed.ContentLength, passed.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil

		answer := &errorRewriter{ResponseWriter: w, progress: &reached}
		transcoder.ServeHTTP(answer, passed)
		answer.finish(r)
	})
}

// progress says how far a request came. The transcoder makes it a message while
// the gRPC server reads, and reports a failure of that as UNKNOWN, as if the
// server had broken; so we must know whose error it is.
type progress struct{ answered atomic.Bool } // by the gRPC server

type progressKey struct{}

// watchAnswers fills in the progress of each request.
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

// Flush implements http.Flusher, which the gRPC server asks for.
func (w *watchedAnswer) Flush() {
	w.progress.answered.Store(true)
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the transcoder's can
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

// dropSystemParameters leaves out what is not for the method. It does not parse
// the rest, because net/url refuses the semicolon in "$alt=json;enum-encoding=int".
func dropSystemParameters(rawQuery string) string {
	kept := slices.DeleteFunc(strings.Split(rawQuery, "&"), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		unescaped, err := url.QueryUnescape(name)
		return err == nil && slices.Contains(systemParameters, unescaped)
	})
	return strings.Join(kept, "&")
}

// errorRewriter passes a success on and keeps an error back, to write it again
// in the form of Google's APIs.
type errorRewriter struct {
	http.ResponseWriter

	progress *progress
	code     int          // 0: not written yet
	answered bool         // whether code is from the gRPC server
	body     bytes.Buffer // of an error
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

// Flush implements http.Flusher, which the transcoder asks for. Answers of unary calls need none.
func (w *errorRewriter) Flush() {}

// finish writes the error, if it is one.
func (w *errorRewriter) finish(r *http.Request) {
	if w.code < http.StatusBadRequest {
		return
	}
	for name := range w.ResponseWriter.Header() {
		w.ResponseWriter.Header().Del(name) // what belonged to the body that we replace
	}
	var status struct {
		Code    codes.Code
		Message string
		Details []json.RawMessage
	}
	switch err := json.Unmarshal(w.body.Bytes(), &status); {
	case err == nil && status.Code == codes.Unknown && !w.answered: // the request is no message of its method
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

// writeError returns an error as Google's APIs do: https://cloud.google.com/apis/design/errors.
func writeError(w http.ResponseWriter, code codes.Code, message string, details []json.RawMessage) {
	type detailed struct {
		Code    int               `json:"code"`
		Message string            `json:"message"`
		Status  string            `json:"status"`
		Details []json.RawMessage `json:"details,omitempty"`
	}
	answer := struct {
		Error detailed `json:"error"`
	}{detailed{Code: httpCode(code), Message: message, Status: codeName(code), Details: details}}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(answer.Error.Code)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(answer) // a caller who has gone needs no answer
}

// httpCode is the code of google/rpc/code.proto.
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
