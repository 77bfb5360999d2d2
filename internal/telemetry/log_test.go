package telemetry_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/telemetry"
)

// lines decodes a log.
func lines(t *testing.T, log *bytes.Buffer) []map[string]any {
	t.Helper()
	var decoded []map[string]any
	for line := range strings.Lines(log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		decoded = append(decoded, fields)
	}
	log.Reset()
	return decoded
}

// A line has the fields of Cloud Logging, and the trace where there is one.
func TestLogSpeaksCloudLogging(t *testing.T) {
	var out bytes.Buffer
	log := telemetry.NewLogger(&out, slog.LevelInfo, "test-project").With("role", "api")
	log.WarnContext(t.Context(), "no trace")
	at := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	log.InfoContext(trace.ContextWithSpanContext(t.Context(), at), "in a trace", "id", 7)
	got := lines(t, &out)
	if len(got) != 2 {
		t.Fatalf("%d lines, want 2", len(got))
	}
	source, _ := got[0]["logging.googleapis.com/sourceLocation"].(map[string]any)
	if file, _ := source["file"].(string); !strings.HasSuffix(file, "log_test.go") {
		t.Errorf("source location = %v, want this file", source)
	}
	if got[0]["severity"] != "WARNING" || got[0]["message"] != "no trace" || got[0]["role"] != "api" || got[0]["time"] == nil {
		t.Errorf("line = %v", got[0])
	}
	if at := got[0]["logging.googleapis.com/trace"]; at != nil {
		t.Errorf("trace = %v, want none", at)
	}
	for field, want := range map[string]any{
		"severity": "INFO", "id": 7.0, "role": "api",
		"logging.googleapis.com/trace":         "projects/test-project/traces/01000000000000000000000000000000",
		"logging.googleapis.com/spanId":        "0200000000000000",
		"logging.googleapis.com/trace_sampled": true,
	} {
		if got[1][field] != want {
			t.Errorf("%s = %v, want %v", field, got[1][field], want)
		}
	}
}

// A place in the code writes 20 warnings at once, and then two per second. Another place has its own limit, and what is no warning has none.
func TestRepetitiveLinesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := telemetry.NewLogger(&out, slog.LevelInfo, "")
		repeat := func(n int) {
			for i := range n {
				log.WarnContext(t.Context(), strconv.Itoa(i)) //nolint:sloglint // as a library does
				log.InfoContext(t.Context(), "a call")
			}
		}
		repeat(50)
		log.WarnContext(t.Context(), "another place")
		if got := len(lines(t, &out)); got != 71 {
			t.Errorf("%d lines, want 20 of one place, 1 of the other, and 50 calls", got)
		}
		time.Sleep(time.Second)
		repeat(50)
		if got := len(lines(t, &out)); got != 52 {
			t.Errorf("%d lines after a second, want 2, and 50 calls", got)
		}
	})
}

// The level may change while the process runs.
func TestLevelChangesAtRunTime(t *testing.T) {
	var out bytes.Buffer
	var level slog.LevelVar
	log := telemetry.NewLogger(&out, &level, "")
	log.DebugContext(t.Context(), "before")
	level.Set(slog.LevelDebug)
	log.DebugContext(t.Context(), "after")
	if got := lines(t, &out); len(got) != 1 || got[0]["message"] != "after" {
		t.Errorf("lines = %v, want the one after the change", got)
	}
}
