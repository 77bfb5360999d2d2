package replay

import (
	"io"
	"strings"
	"testing"
	"time"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A page of a backfill ends with the snapshot that reaches the bytes of a transaction.
func TestPagesAreBounded(t *testing.T) {
	t.Parallel()
	big := envelope.Message{Payload: make([]byte, pageBytes/2)}
	for want, messages := range map[int][]envelope.Message{
		0: {}, 1: {big}, 2: {big, big, big}, 3: {{}, big, big, {}},
	} {
		if got := fitting(messages); got != want {
			t.Errorf("fitting() of %d messages = %d, want %d", len(messages), got, want)
		}
	}
}

// Wrong arguments of a seek are refused, with the reason.
func TestSeekRefusesBadArguments(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"want SUBSCRIPTION and TIME": {"orders.overview", "--why", "x"},
		"want a time such as":        {"orders.overview", "yesterday"},
		"in the future":              {"orders.overview", time.Now().Add(time.Hour).Format(time.RFC3339)},
		"-all":                       {"orders.overview", "2026-01-01T00:00:00Z", "--all"},
	} {
		if _, err := operate.ParseSeek(args, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSeek(%q) = %v, want an error with %q", args, err, want)
		}
	}
	process := &app.Process{Selection: app.Selection{Broker: "kafka"}}
	err := seek(t.Context(), process, []string{"orders.overview", "2026-01-01T00:00:00Z", "--why", "x"}, io.Discard)
	if app.ExitCode(err) != app.ExitUsage || !strings.Contains(err.Error(), "server kafka seek") {
		t.Errorf("seek() with another broker = %v, want its command", err)
	}
}
