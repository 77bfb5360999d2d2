package envelope_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
)

// The names and the forms of the attributes are a contract, with consumers and
// with the filters of subscriptions.
func TestAttributes(t *testing.T) {
	m := envelope.Message{
		ID: uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1003"), AggregateType: "note", AggregateID: "n", Type: "NoteWritten",
		Version: math.MaxInt64, SchemaVersion: 1,
		OccurredAt: time.Date(2026, 1, 2, 4, 4, 5, 678_900_001, time.FixedZone("", 3600)),
	}
	want := map[string]string{
		"event_id":       "01890a5d-ac96-7f00-8b02-0c0d0e0f1003",
		"event_type":     "NoteWritten",
		"aggregate_type": "note",
		"aggregate_id":   "n",
		"version":        "9223372036854775807",
		"schema_version": "1",
		"occurred_at":    "2026-01-02T03:04:05.678900001Z",
	}
	if diff := cmp.Diff(want, m.Attributes()); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	m.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	want["traceparent"] = m.Traceparent
	if diff := cmp.Diff(want, m.Attributes()); diff != "" {
		t.Errorf("attributes with a trace (-want +got):\n%s", diff)
	}
}
