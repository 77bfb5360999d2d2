package telemetry

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// NewLogger returns a logger that writes one JSON object per line with the
// field names of Cloud Logging
// (https://cloud.google.com/logging/docs/structured-logging). A line has its
// source position and its trace. project is the project of the trace; it may be
// empty. Lines of the same kind are limited to repeatBurst per repeatWindow.
func NewLogger(w io.Writer, level slog.Leveler, project string) *slog.Logger {
	prefix := ""
	if project != "" {
		prefix = "projects/" + project + "/traces/"
	}
	lines := slog.NewJSONHandler(w, &slog.HandlerOptions{AddSource: true, Level: level, ReplaceAttr: cloudLogging})
	return slog.New(&repeats{next: &traced{Handler: lines, prefix: prefix}, seen: &seen{lines: make(map[kind]*count)}})
}

func cloudLogging(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.MessageKey:
		a.Key = "message"
	case slog.SourceKey:
		a.Key = "logging.googleapis.com/sourceLocation"
	case slog.LevelKey:
		a.Key = "severity"
		if a.Value.Any() == slog.LevelWarn {
			a.Value = slog.StringValue("WARNING")
		}
	}
	return a
}

// traced adds the ids of the current trace to a line.
type traced struct {
	slog.Handler
	prefix string
}

func (h *traced) Handle(ctx context.Context, record slog.Record) error {
	if at := trace.SpanContextFromContext(ctx); at.IsValid() {
		record = record.Clone()
		record.AddAttrs(
			slog.String("logging.googleapis.com/trace", h.prefix+at.TraceID().String()), //nolint:sloglint // a name of Cloud Logging
			slog.String("logging.googleapis.com/spanId", at.SpanID().String()),          //nolint:sloglint // a name of Cloud Logging
			slog.Bool("logging.googleapis.com/trace_sampled", at.IsSampled()),           //nolint:sloglint // a name of Cloud Logging
		)
	}
	return h.Handler.Handle(ctx, record)
}

func (h *traced) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &traced{Handler: h.Handler.WithAttrs(attrs), prefix: h.prefix}
}

func (h *traced) WithGroup(name string) slog.Handler {
	return &traced{Handler: h.Handler.WithGroup(name), prefix: h.prefix}
}

const (
	// repeatBurst is how many lines of one kind are written per repeatWindow;
	// the rest of the window is suppressed.
	repeatWindow = 10 * time.Second
	repeatBurst  = 20
	// maxKinds limits the memory. Our code has fewer kinds; beyond the limit,
	// for example if a library puts values into its messages, all lines count
	// as one kind.
	maxKinds = 1000
)

// kind identifies lines that repeat each other: by message, and for requests
// also by method and code. Our messages contain no values.
type kind struct{ message, method, code string }

// repeats suppresses lines of a kind beyond its limit. The next line that is
// written has the number of suppressed ones.
type repeats struct {
	next slog.Handler
	seen *seen
}

func (h *repeats) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *repeats) Handle(ctx context.Context, record slog.Record) error {
	k := kind{message: record.Message}
	record.Attrs(func(a slog.Attr) bool {
		switch {
		case a.Value.Kind() != slog.KindString:
		case a.Key == "method":
			k.method = a.Value.String()
		case a.Key == "code":
			k.code = a.Value.String()
		}
		return true
	})
	write, suppressed := h.seen.note(k, record.Time)
	if !write {
		return nil
	}
	if suppressed > 0 {
		record = record.Clone()
		record.AddAttrs(slog.Int("suppressed", suppressed))
	}
	return h.next.Handle(ctx, record)
}

func (h *repeats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &repeats{next: h.next.WithAttrs(attrs), seen: h.seen}
}

func (h *repeats) WithGroup(name string) slog.Handler {
	return &repeats{next: h.next.WithGroup(name), seen: h.seen}
}

type seen struct {
	mu    sync.Mutex
	lines map[kind]*count // at most maxKinds, and one for all other kinds; guarded by mu
}

type count struct {
	since               time.Time
	written, suppressed int
}

// note counts a line and reports whether to write it. suppressed is the number
// of lines of that kind dropped in the previous window.
func (s *seen) note(k kind, now time.Time) (write bool, suppressed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.lines[k]
	if c == nil && len(s.lines) >= maxKinds {
		k = kind{}
		c = s.lines[k]
	}
	if c == nil {
		c = &count{since: now}
		s.lines[k] = c
	}
	if now.Sub(c.since) >= repeatWindow {
		suppressed = c.suppressed
		*c = count{since: now}
	}
	if c.written == repeatBurst {
		c.suppressed++
		return false, 0
	}
	c.written++
	return true, suppressed
}
