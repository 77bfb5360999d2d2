package server

import (
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

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// gateway serves the REST API, as api/proto maps it, with calls over a connection.
type gateway struct {
	mux        *runtime.ServeMux
	maxReceive int64
	requests   *requests // is told of what never becomes a call, as gRPC tells of the others
}

func newGateway(conn *grpc.ClientConn, maxReceive int64, requests *requests) (http.Handler, error) {
	strictQueries()
	asJSON := &strictJSON{JSONPb: &runtime.JSONPb{
		// Numbers, texts and lists are there even when empty, so that a client
		// need not guess; a message that is not set, such as delete_time, is
		// left out, because null would look like a value.
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
	calls := callsOf{conn}
	if err := errors.Join(
		videov1.RegisterVideoServiceHandlerClient(context.Background(), g.mux, videov1.NewVideoServiceClient(calls)),
		catalogv1.RegisterCatalogServiceHandlerClient(context.Background(), g.mux, catalogv1.NewCatalogServiceClient(calls)),
	); err != nil {
		return nil, fmt.Errorf("register gateway: %w", err)
	}
	return g, nil
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &restRequest{start: time.Now(), header: w.Header()}
	r = r.WithContext(context.WithValue(r.Context(), restKey{}, seen))
	r.Body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, g.maxReceive), seen: seen}
	switch {
	case isStream(r):
		r = prepareStream(w, r)
	case r.Method == http.MethodHead:
		r.Method = http.MethodGet // net/http knows better, and sends no body
	}
	g.mux.ServeHTTP(w, r)
}

// headerToMetadata lets through what ties a call to its trace, and who calls, and
// nothing else (but the gateway always passes on Authorization, the host and the
// address of the caller).
func headerToMetadata(header string) (string, bool) {
	switch name := strings.ToLower(header); name {
	case "traceparent", "tracestate", "x-request-id", "x-serverless-authorization":
		return name, true
	}
	return "", false
}

// strictJSON is JSON in which a mistake is an error: a field that does not
// exist, or something behind the end. It writes an error in the midst of a stream
// as errors are everywhere.
type strictJSON struct{ *runtime.JSONPb }

func (j *strictJSON) Marshal(v any) ([]byte, error) {
	if chunk, ok := v.(map[string]proto.Message); ok { // as handleForwardResponseStreamError in the gateway has it
		if st, ok := chunk["error"].(*spb.Status); ok {
			return errorBody(status.FromProto(st)), nil
		}
	}
	return j.JSONPb.Marshal(v) //nolint:wrapcheck // the gateway's own
}

func (j *strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	wrapper, ok := j.JSONPb.NewDecoder(r).(runtime.DecoderWrapper) // as it documents
	return runtime.DecoderFunc(func(v any) error {
		if !ok {
			return errors.New("gateway: NewDecoder answers no DecoderWrapper")
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

// readable returns the error of a body as its sender can read it.
func readable(err error) error {
	if errors.Is(err, io.EOF) {
		return err // there is no body, which may be fine
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("body: it took longer than a request may")
	}
	return errors.New("body: " + withoutNoise(err))
}

// withoutNoise takes out what protobuf puts into its errors so that nobody depends
// on them (google.golang.org/protobuf/internal/errors).
func withoutNoise(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
}

// strictQueries makes the gateway read queries our way. The library keeps the
// parser in a global variable, so it is set once and not per server.
var strictQueries = sync.OnceFunc(func() {
	runtime.NewServeMux(runtime.SetQueryParameterParser(strictQuery{}))
})

// strictQuery reads the parameters of a query, and refuses those that do not
// exist: a caller who misspells etag counts on a check that would not happen.
type strictQuery struct{ runtime.DefaultQueryParser }

func (q strictQuery) Parse(message proto.Message, values url.Values, taken *utilities.DoubleArray) error {
	fields := message.ProtoReflect().Descriptor().Fields()
	for key := range values {
		field := fields.ByTextName(key)
		if field == nil {
			field = fields.ByJSONName(key)
		}
		if field == nil || taken.HasCommonPrefix([]string{string(field.Name())}) {
			return fmt.Errorf("query: unknown parameter %q", key)
		}
	}
	if err := q.DefaultQueryParser.Parse(message, values, taken); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	if u, ok := updateOf(message); ok {
		textMask(u, values.Has("updateMask") || values.Has("update_mask"))
	}
	return nil
}

// textMask gives the paths of an update mask their names in proto, where the
// caller wrote the names of JSON. Of a body without a field the gateway makes a
// mask of one empty path, which is none.
func textMask(u update, given bool) {
	fields := u.resource.Descriptor().Fields()
	for i, path := range u.mask.GetPaths() {
		if field := fields.ByJSONName(path); field != nil {
			u.mask.Paths[i] = field.TextName()
		}
	}
	if !given && slices.Equal(u.mask.GetPaths(), []string{""}) {
		u.mask.Paths = nil
	}
}
