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

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// newGateway answers the REST API, as api/proto maps it, with calls over conn.
// What it answers without one is told to requests, as gRPC tells of the others.
func newGateway(conn *grpc.ClientConn, maxReceive int64, requests *requests) (http.Handler, error) {
	strictQueries()
	asJSON := &strictJSON{JSONPb: &runtime.JSONPb{
		// Numbers, texts and lists are there even when empty, so that a client
		// need not guess; a message that is not set, such as delete_time, is
		// left out, because null would look like a value.
		MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true},
	}}
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, asJSON),
		runtime.WithMarshalerOption(eventStream, &events{asJSON}),
		runtime.WithIncomingHeaderMatcher(headerToMetadata),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithRoutingErrorHandler(routingError),
		runtime.WithErrorHandler(func(ctx context.Context, mux *runtime.ServeMux, marshaler runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
			runtime.DefaultHTTPErrorHandler(ctx, mux, marshaler, w, r, err)
			requests.rest(r, err)
		}),
		runtime.WithDisablePathLengthFallback(), // no GET by POST, and no X-HTTP-Method-Override
	)
	calls := callsOf{conn}
	if err := errors.Join(
		videov1.RegisterVideoServiceHandlerClient(context.Background(), mux, videov1.NewVideoServiceClient(calls)),
		catalogv1.RegisterCatalogServiceHandlerClient(context.Background(), mux, catalogv1.NewCatalogServiceClient(calls)),
	); err != nil {
		return nil, fmt.Errorf("register gateway: %w", err)
	}
	return http.MaxBytesHandler(rememberREST(streamsOverREST(mux)), maxReceive), nil
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

// routingError answers 405, where the gateway by itself would answer 501.
func routingError(ctx context.Context, mux *runtime.ServeMux, marshaler runtime.Marshaler, w http.ResponseWriter, r *http.Request, httpStatus int) {
	if httpStatus != http.StatusMethodNotAllowed {
		runtime.DefaultRoutingErrorHandler(ctx, mux, marshaler, w, r, httpStatus)
		return
	}
	runtime.HTTPError(ctx, mux, marshaler, w, r, &runtime.HTTPStatusError{
		HTTPStatus: httpStatus,
		Err:        status.Errorf(codes.Unimplemented, "no method %s here", r.Method),
	})
}

// strictJSON is JSON in which a mistake is an error: a field that does not
// exist, or something behind the end.
type strictJSON struct{ *runtime.JSONPb }

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

// readable takes out what protobuf puts into its errors so that nobody depends
// on them (google.golang.org/protobuf/internal/errors).
func readable(err error) error {
	if errors.Is(err, io.EOF) {
		return err // there is no body, which may be fine
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("body: it took longer than a request may")
	}
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return errors.New("body: " + strings.TrimPrefix(text, "proto: "))
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
