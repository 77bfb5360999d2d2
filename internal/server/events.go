package server

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"
)

// A watch over REST is a line of JSON for each message, or, for whom Accept says
// so, Server-Sent Events, which a browser reads by EventSource
// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
const (
	ndjson      = "application/x-ndjson"
	eventStream = "text/event-stream"
)

// StreamContentType is that of a stream that has begun.
func (j *strictJSON) StreamContentType(any) string { return ndjson }

// events writes the messages of a stream as events, with the resume token as
// their id. An error, which ends the stream, is an event of the type error.
// Whatever is no stream stays JSON.
type events struct{ *strictJSON }

func (e *events) StreamContentType(any) string { return eventStream }

func (e *events) ContentType(v any) string {
	if _, ok := v.(map[string]proto.Message); ok { // a stream that fails before it begins
		return eventStream
	}
	return e.strictJSON.ContentType(v)
}

// Marshal takes what runtime.ForwardResponseStream makes of a message or an
// error. The delimiter, an empty line, ends the event.
func (e *events) Marshal(v any) ([]byte, error) {
	var event bytes.Buffer
	data := v
	switch chunk := v.(type) {
	case map[string]any:
		data = chunk["result"]
		if message, ok := data.(interface{ GetResumeToken() string }); ok {
			fmt.Fprintf(&event, "id: %s\n", message.GetResumeToken())
		}
	case map[string]proto.Message:
		event.WriteString("event: error\n")
	default:
		return e.strictJSON.Marshal(v)
	}
	text, err := e.strictJSON.Marshal(data) // without line breaks
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&event, "data: %s\n", text)
	return event.Bytes(), nil
}

// prepareStream keeps proxies from collecting a stream before they pass it on
// (https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_buffering),
// and returns the request with the last event that its client has had as its
// resume token.
func prepareStream(w http.ResponseWriter, r *http.Request) *http.Request {
	w.Header().Set("X-Accel-Buffering", "no")
	w.Header().Set("Cache-Control", "no-store")
	id := r.Header.Get("Last-Event-ID")
	if id == "" {
		return r
	}
	r = r.Clone(r.Context())
	query := r.URL.Query()
	query.Del("resume_token")
	query.Set("resumeToken", id)
	r.URL.RawQuery = query.Encode()
	return r
}

var _ runtime.StreamContentType = (*events)(nil)
