package telemetry

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// NewLogger writes one JSON object per line with the field names that Cloud
// Logging gives a meaning to
// (https://cloud.google.com/logging/docs/structured-logging), the place in the
// source and, inside a trace, that among them. project is the project of the
// trace; it may be empty. Of lines that repeat each other it writes some.
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

// traced adds the trace that a line belongs to.
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
	// repeatWindow and repeatBurst: of one kind of line so many are written in
	// such a time; then none until it is over.
	repeatWindow = 10 * time.Second
	repeatBurst  = 20
	// maxKinds is more than the code has; what comes beyond it, when a library
	// writes values into its messages, is of one kind.
	maxKinds = 1000
)

// kind is what lines have in common that repeat each other: the message, which
// has no values in it where it is ours, and for requests the method and the code.
type kind struct{ message, method, code string }

// repeats drops lines of a kind of which there were many. The first one that is
// written again says how many were suppressed.
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
	lines map[kind]*count // guarded by mu; at most maxKinds, and the one of what is beyond
}

type count struct {
	since               time.Time
	written, suppressed int
}

// note counts a line and reports whether to write it, and then how many before
// it were not.
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
