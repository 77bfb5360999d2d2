package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	// heartbeat is the longest silence on a stream, so that proxies keep it open.
	heartbeat = 15 * time.Second
	// writeLimit is how long a client may take to read an event.
	writeLimit = 10 * time.Second
)

// live streams the parts of a page that change, as server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html). The query has the names
// of the parts. A client that comes again gets what has changed after its Last-Event-ID.
// Streams end when the console stops.
func (s *Server) live(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	wanted := strings.Split(r.URL.Query().Get("parts"), ",")
	after := r.Header.Get("Last-Event-ID")
	if after == "" {
		after = r.URL.Query().Get("after")
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would collect events
	send := func(text []byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(writeLimit)) // the write fails if this does
		if _, err := w.Write(text); err != nil {
			return false
		}
		return control.Flush() == nil
	}
	if !send([]byte("retry: 1000\n\n")) {
		return
	}
	s.hub.look(r.Context())
	for {
		parts, id, changed := s.hub.news(after)
		event := make(map[string]string)
		for _, name := range wanted {
			if html, ok := parts[name]; ok {
				event[name] = string(html)
			}
		}
		data, err := json.Marshal(event)
		if err != nil { // cannot happen: all are strings
			return
		}
		var out bytes.Buffer
		fmt.Fprintf(&out, "id: %s\ndata: %s\n\n", id, data)
		if id != after && !send(out.Bytes()) {
			return
		}
		after = id
		select {
		case <-changed:
		case <-time.After(heartbeat):
			if !send([]byte(": still here\n\n")) {
				return
			}
		case <-s.hub.stopped:
			return
		case <-r.Context().Done():
			return
		}
	}
}
