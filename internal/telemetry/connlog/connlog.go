// Package connlog formats the error log of an HTTP server.
package connlog

import (
	"context"
	"log/slog"
)

// New returns a handler for http.Server.ErrorLog that logs every line under one
// message, with the original text in the attribute err. net/http puts the
// client's address into each text, so no two texts are equal. A client could
// otherwise fill the log, and the memory of a handler that suppresses repeated
// messages.
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
