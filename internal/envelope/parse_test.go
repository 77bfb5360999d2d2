package envelope_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
)

// note is a message with something in every field.
var note = envelope.Message{
	ID: uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1003"), AggregateType: "note", AggregateID: "n", Type: "NoteWritten",
	Version: envelope.MaxVersion, SchemaVersion: 1, Payload: []byte("text\x00"),
	OccurredAt: time.Date(2026, 1, 2, 3, 4, 5, 678_900_001, time.UTC), Traceparent: sampledParent,
}

// Parse reads the attributes that Attributes writes, and ignores others.
func TestParseReadsWhatAttributesWrites(t *testing.T) {
	attributes := note.Attributes()
	attributes["googclient_schemaencoding"] = "BINARY"
	got, err := envelope.Parse(attributes, note.Payload)
	if err != nil {
		t.Fatalf("Parse() = %v", err)
	}
	if diff := cmp.Diff(note, got); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	delete(attributes, envelope.AttrTraceparent)
	if got, err := envelope.Parse(attributes, nil); err != nil || got.Traceparent != "" {
		t.Errorf("Parse() without a trace = %q, %v, want none, nil", got.Traceparent, err)
	}
}

// A missing or malformed attribute is named by a DecodeError.
func TestParseRefuses(t *testing.T) {
	cases := map[string][]string{
		envelope.AttrEventID:       {"", "event-1", "01890a5d-ac96-7f00-8b02-0c0d0e0f10030"},
		envelope.AttrEventType:     {""},
		envelope.AttrAggregateType: {""},
		envelope.AttrAggregateID:   {""},
		envelope.AttrVersion:       {"", "0", "-1", "1.0", "1099511627777", "99999999999999999999"},
		envelope.AttrSchemaVersion: {"", "0", "-1", "1.0", "2147483648"},
		envelope.AttrOccurredAt:    {"", "yesterday", "2026-01-02 03:04:05", "1767323045"},
	}
	refused := func(name string, attributes map[string]string) {
		t.Helper()
		got, err := envelope.Parse(attributes, note.Payload)
		var decodeErr *envelope.DecodeError
		if !errors.As(err, &decodeErr) || !strings.Contains(err.Error(), "attribute "+name+" is ") {
			t.Errorf("Parse() with %s %q = %+v, %v, want a DecodeError that names it", name, attributes[name], got, err)
		}
	}
	for name, values := range cases {
		attributes := note.Attributes()
		delete(attributes, name)
		refused(name, attributes)
		for _, value := range values {
			attributes := maps.Clone(note.Attributes())
			attributes[name] = value
			refused(name, attributes)
		}
	}
	if got, err := envelope.Parse(nil, nil); err == nil {
		t.Errorf("Parse() of nothing = %+v, want an error", got)
	}
}

// CheckLimits returns an error for a message that Pub/Sub, or every consumer, would refuse.
func TestCheckLimits(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*envelope.Message)
		good   bool
	}{
		{"as it is", func(*envelope.Message) {}, true},
		{"longest ordering key", func(m *envelope.Message) { m.AggregateID = strings.Repeat("n", 1024) }, true},
		{"ordering key too long", func(m *envelope.Message) { m.AggregateID = strings.Repeat("n", 1025) }, false},
		{"attribute too long", func(m *envelope.Message) { m.Type = strings.Repeat("n", 1025) }, false},
		{"version beyond the last", func(m *envelope.Message) { m.Version++ }, false},
		{"too many bytes", func(m *envelope.Message) { m.Payload = make([]byte, 10_000_000) }, false},
	} {
		m := note
		test.change(&m)
		if err := m.CheckLimits(); (err == nil) != test.good {
			t.Errorf("%s: CheckLimits() = %v, want an error: %t", test.name, err, !test.good)
		}
	}
}
