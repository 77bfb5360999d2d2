package port

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
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
		runtime.WithIncomingHeaderMatcher(headerToMetadata),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMiddlewares(g.checked),
		runtime.WithForwardResponseOption(writeETag),
		runtime.WithRoutingErrorHandler(g.routingError),
		runtime.WithErrorHandler(func(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
			g.fail(w, r, named(ctx, err))
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
		prepareStream(w.Header())
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
// body, with the path of the wrong field. An error in the middle of a stream is written in the same form as every
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

// StreamContentType returns the content type of a stream: one line of JSON per message.
func (j *strictJSON) StreamContentType(any) string { return "application/x-ndjson" }

// prepareStream disables the buffering of proxies
// (https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_buffering).
func prepareStream(header http.Header) {
	header.Set("X-Accel-Buffering", "no")
	header.Set("Cache-Control", "no-store")
}

func (j *strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		text, err := io.ReadAll(r)
		if err != nil {
			return err //nolint:wrapcheck // body has named it
		}
		if len(bytes.TrimSpace(text)) > 0 {
			if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
				return fmt.Errorf("body: %w", err)
			}
		}
		err = j.JSONPb.Unmarshal(text, v)
		if err == nil || errors.Is(err, io.EOF) { // no body, which may be valid
			return err //nolint:wrapcheck // the gateway compares it
		}
		return bodyError(v, text, err)
	})
}

// bodyError returns the error of a body that does not become v, as "body: field: rule".
// v is a message, or a pointer to one.
func bodyError(v any, text []byte, err error) error {
	message, ok := v.(proto.Message)
	if !ok {
		message, ok = reflect.TypeAssert[proto.Message](reflect.ValueOf(v).Elem())
	}
	if !ok { // the body is a field that is no message
		return errors.New("body: " + withoutNoise(err))
	}
	path, rule := faultIn(message.ProtoReflect().Descriptor(), text, "", 0)
	if path == "" {
		return errors.New("body: " + rule)
	}
	return fmt.Errorf("body: %s: %s", path, rule)
}

// withoutNoise removes the random space and the prefix that protobuf puts into
// its errors (google.golang.org/protobuf/internal/errors).
func withoutNoise(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
}
