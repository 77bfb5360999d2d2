package cors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

const (
	lines       = "application/x-ndjson" // the content type of a watch: a line of JSON per message
	eventStream = "text/event-stream"
)

// withEvents converts a watch to Server-Sent Events if the Accept header requests them, as
// EventSource sends it (https://html.spec.whatwg.org/multipage/server-sent-events.html). The
// resume token of a message is the id of its event. Other responses, such as an error before
// the first message, stay as they are.
func withEvents(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != eventStream || !strings.HasSuffix(r.URL.Path, ":watch") { // AIP-136
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&eventWriter{ResponseWriter: w}, resumed(r))
	})
}

// resumed returns the request with Last-Event-ID, if present, as its resume token.
func resumed(r *http.Request) *http.Request {
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

// eventWriter writes each line of a watch as an event.
type eventWriter struct {
	http.ResponseWriter
	begun, isWatch bool
	rest           []byte // of a line that is not complete yet
}

// Unwrap is for [http.ResponseController].
func (w *eventWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// begin sets the content type, before the header is sent.
func (w *eventWriter) begin() {
	if w.begun {
		return
	}
	w.begun, w.isWatch = true, w.Header().Get("Content-Type") == lines
	if w.isWatch {
		w.Header().Set("Content-Type", eventStream)
	}
}

func (w *eventWriter) WriteHeader(code int) {
	w.begin()
	w.ResponseWriter.WriteHeader(code)
}

// FlushError is for [http.ResponseController].
func (w *eventWriter) FlushError() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush() //nolint:wrapcheck // the server's own
}

func (w *eventWriter) Write(p []byte) (int, error) {
	w.begin()
	if !w.isWatch {
		return w.ResponseWriter.Write(p) //nolint:wrapcheck // an io.Writer's
	}
	w.rest = append(w.rest, p...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		if _, err := w.ResponseWriter.Write(event(line)); err != nil {
			return 0, err //nolint:wrapcheck // an io.Writer's
		}
		w.rest = rest
	}
}

// event returns the event of a line, {"result": message} or {"error": status}. An error, which
// ends the stream, has the event type error.
func event(line []byte) []byte {
	var of struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(line, &of); err != nil || of.Result == nil {
		return fmt.Appendf(nil, "event: error\ndata: %s\n\n", line)
	}
	var message struct {
		ResumeToken string `json:"resumeToken"`
	}
	if err := json.Unmarshal(of.Result, &message); err != nil || message.ResumeToken == "" {
		return fmt.Appendf(nil, "data: %s\n\n", of.Result)
	}
	return fmt.Appendf(nil, "id: %s\ndata: %s\n\n", message.ResumeToken, of.Result)
}
