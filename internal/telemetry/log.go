package telemetry

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// NewLogger returns a logger that writes one JSON object per line with the field names of Cloud
// Logging (https://cloud.google.com/logging/docs/structured-logging). project is the project of the
// traces; it may be empty. Each place in the code writes at most 20 warnings and errors at once, and two per second.
func NewLogger(w io.Writer, level slog.Leveler, project string) *slog.Logger {
	if project != "" {
		project = "projects/" + project + "/traces/"
	}
	lines := slog.NewJSONHandler(w, &slog.HandlerOptions{AddSource: true, Level: level, ReplaceAttr: cloudLogging})
	return slog.New(&handler{lines, project, new(sync.Map)})
}

func cloudLogging(groups []string, a slog.Attr) slog.Attr {
	switch {
	case len(groups) > 0:
	case a.Key == slog.MessageKey:
		a.Key = "message"
	case a.Key == slog.SourceKey:
		a.Key = "logging.googleapis.com/sourceLocation"
	case a.Key == slog.LevelKey && a.Value.Any() == slog.LevelWarn:
		return slog.String("severity", "WARNING")
	case a.Key == slog.LevelKey:
		a.Key = "severity"
	}
	return a
}

type handler struct {
	slog.Handler
	traces string    // the prefix of traces
	limits *sync.Map // a *rate.Limiter by record.PC
}

func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	if !h.allowed(record) {
		return nil
	}
	if at := trace.SpanContextFromContext(ctx); at.IsValid() {
		record = record.Clone()
		record.AddAttrs(
			slog.String("logging.googleapis.com/trace", h.traces+at.TraceID().String()), //nolint:sloglint // a name of Cloud Logging
			slog.String("logging.googleapis.com/spanId", at.SpanID().String()),          //nolint:sloglint // a name of Cloud Logging
			slog.Bool("logging.googleapis.com/trace_sampled", at.IsSampled()),           //nolint:sloglint // a name of Cloud Logging
		)
	}
	return h.Handler.Handle(ctx, record)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.traces, h.limits}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.traces, h.limits}
}

// allowed reports whether the place in the code that warns has not yet warned too much. So a client that
// causes errors cannot fill the log with them. Each call has a line, as in the platform's log of requests.
func (h *handler) allowed(record slog.Record) bool {
	limit, _ := h.limits.LoadOrStore(record.PC, rate.NewLimiter(rate.Every(500*time.Millisecond), 20))
	return record.Level < slog.LevelWarn || limit.(*rate.Limiter).AllowN(record.Time, 1) //nolint:forcetypeassert // it has no other values
}
