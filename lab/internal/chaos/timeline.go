package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// timeline writes the events of the run, one JSON object per line. Its methods
// are safe for concurrent use.
type timeline struct {
	mu    sync.Mutex
	to    io.Writer // guarded by mu
	start time.Time
	err   error // guarded by mu: the first error
}

// add writes a line: what happened, and pairs of names and values.
func (t *timeline) add(what string, pairs ...any) {
	now := time.Now()
	line := map[string]any{"at": now.Format(time.RFC3339Nano), "ms": now.Sub(t.start).Milliseconds(), "what": what}
	for i := 0; i+1 < len(pairs); i += 2 {
		line[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	b, err := json.Marshal(line)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		_, err = t.to.Write(append(b, '\n'))
	}
	if t.err == nil {
		t.err = err
	}
}

// failure returns the first write error.
func (t *timeline) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
