package port

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"
)

// Formats of a watch over REST: one line of JSON per message, or Server-Sent
// Events if the Accept header requests them. Browsers read such events with
// EventSource (https://html.spec.whatwg.org/multipage/server-sent-events.html).
const (
	ndjson      = "application/x-ndjson"
	eventStream = "text/event-stream"
)

// StreamContentType returns the content type of a stream.
func (j *strictJSON) StreamContentType(any) string { return ndjson }

// events encodes the messages of a stream as Server-Sent Events, with the
// resume token as their id. An error, which ends the stream, has the event type
// error. Other responses stay JSON.
type events struct{ *strictJSON }

func (e *events) StreamContentType(any) string { return eventStream }

func (e *events) ContentType(v any) string {
	if _, ok := v.(map[string]proto.Message); ok { // a stream that fails before its first message
		return eventStream
	}
	return e.strictJSON.ContentType(v)
}

// Marshal encodes a message or an error in the form of
// runtime.ForwardResponseStream. The caller adds an empty line, the delimiter,
// which ends the event.
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
	text, err := e.strictJSON.Marshal(data) // has no line breaks
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&event, "data: %s\n", text)
	return event.Bytes(), nil
}

// prepareStream disables the buffering of proxies
// (https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_buffering).
// It returns the request with Last-Event-ID, if present, as its resume token.
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
