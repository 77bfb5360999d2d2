package port

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/videocatalog/internal/aip"
)

// gateway serves the REST API as api/proto maps it. Each request becomes a gRPC
// call over a connection.
type gateway struct {
	mux        *runtime.ServeMux
	maxReceive int64
	requests   *requests // logs requests that never become a call
}

func newGateway(services []Service, conn *grpc.ClientConn, maxReceive int64, requests *requests) (http.Handler, error) {
	strictQueries()
	asJSON := &strictJSON{JSONPb: &runtime.JSONPb{
		// Empty numbers, strings and lists are written too, so that a client
		// need not guess. Unset messages, such as delete_time, are left out,
		// because null would look like a value.
		MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true},
	}}
	g := &gateway{maxReceive: maxReceive, requests: requests}
	g.mux = runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, asJSON),
		runtime.WithMarshalerOption(eventStream, &events{asJSON}),
		runtime.WithIncomingHeaderMatcher(headerToMetadata),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMiddlewares(g.checked),
		runtime.WithForwardResponseOption(writeETag),
		runtime.WithRoutingErrorHandler(g.routingError),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
			g.fail(w, r, err)
		}),
		runtime.WithStreamErrorHandler(streamError),
		runtime.WithDisablePathLengthFallback(), // no GET by POST, and no X-HTTP-Method-Override
	)
	for _, service := range services {
		if service.Gateway == nil {
			continue
		}
		if err := service.Gateway(g.mux, callsOf{conn}); err != nil {
			return nil, fmt.Errorf("register gateway: %w", err)
		}
	}
	return g, nil
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &restRequest{start: time.Now(), header: w.Header()}
	r = r.WithContext(context.WithValue(r.Context(), restKey{}, seen))
	r.Body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, g.maxReceive), seen: seen}
	makePrintable(r.Header)
	switch {
	case isStream(r):
		r = prepareStream(w, r)
	case r.Method == http.MethodHead:
		r.Method = http.MethodGet // net/http sends no body for a HEAD request
	}
	g.mux.ServeHTTP(w, r)
}

// makePrintable replaces each character that gRPC metadata cannot have in the headers
// that become metadata. The gateway would drop the whole value: the addresses that
// proxies have appended, or a token in favor of the next one.
func makePrintable(header http.Header) {
	for name, values := range header {
		if _, ok := headerToMetadata(name); !ok && name != "Authorization" && name != "X-Forwarded-For" {
			continue
		}
		for i, value := range values {
			values[i] = strings.Map(func(c rune) rune {
				if c < ' ' || c > '~' {
					return '?'
				}
				return c
			}, value)
		}
	}
}

// headerToMetadata selects the headers that become gRPC metadata: those of the
// trace, the request id and the caller's credentials. The gateway always adds
// Authorization, the host and the address of the caller.
func headerToMetadata(header string) (string, bool) {
	switch name := strings.ToLower(header); name {
	case "traceparent", "tracestate", "x-request-id", "x-serverless-authorization":
		return name, true
	}
	return "", false
}

// strictJSON is a JSON codec that rejects unknown fields and bytes after the
// body. An error in the middle of a stream is written in the same form as every
// other error.
type strictJSON struct{ *runtime.JSONPb }

func (j *strictJSON) Marshal(v any) ([]byte, error) {
	if chunk, ok := v.(map[string]proto.Message); ok { // the type that handleForwardResponseStreamError of the gateway passes
		if st, ok := chunk["error"].(*spb.Status); ok {
			return errorBody(status.FromProto(st)), nil
		}
	}
	return j.JSONPb.Marshal(v) //nolint:wrapcheck // the gateway's own
}

func (j *strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	wrapper, ok := j.JSONPb.NewDecoder(r).(runtime.DecoderWrapper) // its documented type
	return runtime.DecoderFunc(func(v any) error {
		if !ok {
			return errors.New("gateway: NewDecoder returned no DecoderWrapper")
		}
		if err := wrapper.Decode(v); err != nil {
			return readable(err)
		}
		switch _, err := wrapper.Token(); {
		case err == nil:
			return errors.New("the body goes on behind its end")
		case !errors.Is(err, io.EOF):
			return readable(err)
		}
		return nil
	})
}

// readable returns the error of a body without the internals of the libraries.
// io.EOF is returned unchanged.
func readable(err error) error {
	if errors.Is(err, io.EOF) {
		return err // no body, which may be valid
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("body: it took longer than a request may")
	}
	return errors.New("body: " + withoutNoise(err))
}

// withoutNoise removes the random space and the prefix that protobuf puts into
// its errors (google.golang.org/protobuf/internal/errors).
func withoutNoise(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
}

// strictQueries installs strictQuery once per process, because the library
// keeps the parser in a global variable.
var strictQueries = sync.OnceFunc(func() {
	runtime.NewServeMux(runtime.SetQueryParameterParser(strictQuery{}))
})

// strictQuery parses the query of a URL and rejects unknown parameters. A
// caller who misspells etag would otherwise rely on a check that never runs.
type strictQuery struct{ runtime.DefaultQueryParser }

func (q strictQuery) Parse(message proto.Message, values url.Values, taken *utilities.DoubleArray) error {
	for key := range values {
		path := parameterOf(message.ProtoReflect().Descriptor(), strings.Split(key, "."))
		if path == nil || taken.HasCommonPrefix(path) {
			return fmt.Errorf("query: unknown parameter %q", key)
		}
	}
	if err := q.DefaultQueryParser.Parse(message, values, taken); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	if u, ok := aip.UpdateOf(message); ok {
		textMask(u, values.Has("updateMask") || values.Has("update_mask"))
	}
	return nil
}

// parameterOf returns the names in proto of the fields on a path such as
// filter.publishYear, or nil if there is no such field. A duration or another message
// of google.protobuf is one value.
func parameterOf(message protoreflect.MessageDescriptor, path []string) (names []string) {
	for _, name := range path {
		if message == nil || message.ParentFile().Package() == "google.protobuf" {
			return nil
		}
		field := cmp.Or(message.Fields().ByTextName(name), message.Fields().ByJSONName(name))
		if field == nil {
			return nil
		}
		names, message = append(names, string(field.Name())), field.Message()
	}
	return names
}

// textMask renames the paths of an update mask from JSON names to proto names.
// For a body without fields the gateway makes a mask of one empty path, which
// textMask removes.
func textMask(u aip.Update, given bool) {
	fields := u.Resource.Descriptor().Fields()
	for i, path := range u.Mask.GetPaths() {
		if field := fields.ByJSONName(path); field != nil {
			u.Mask.Paths[i] = field.TextName()
		}
	}
	if !given && slices.Equal(u.Mask.GetPaths(), []string{""}) {
		u.Mask.Paths = nil
	}
}
