// Package connlog formats the error log of an HTTP server.
package connlog

import (
	"context"
	"log/slog"
)

// New returns a handler for http.Server.ErrorLog that logs every line under one
// message. The original text is in the attribute err: it contains the client's
// address, so no two texts are equal. As messages they would defeat the limit
// on repeated lines, and a client could fill the log.
func New(to *slog.Logger, message string) slog.Handler {
	return handler{to.Handler(), message}
}

type handler struct {
	slog.Handler
	message string
}

func (h handler) Handle(ctx context.Context, said slog.Record) error {
	record := slog.NewRecord(said.Time, said.Level, h.message, said.PC)
	record.AddAttrs(slog.String("err", said.Message))
	return h.Handler.Handle(ctx, record)
}
