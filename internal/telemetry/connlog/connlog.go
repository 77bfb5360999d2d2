// Package connlog shapes the error log of an HTTP server.
package connlog

import (
	"context"
	"log/slog"
)

// New returns the handler for the log of http.Server.ErrorLog: it writes every line under one message. What
// net/http says of a connection has the address of the client in it, so that no line repeats another, and a
// client could fill the log and the memory of whoever looks for repetitions: it is in the attribute err.
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
