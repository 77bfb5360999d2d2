package event_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// published is an event with something in every field that it can have.
func published() *domain.VideoEvent {
	return &domain.VideoEvent{
		ID: uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1003"), Type: domain.VideoPublished, OccurredAt: epoch,
		Video: domain.Video{
			ID:           videoID,
			VideoDetails: domain.VideoDetails{Title: "Ran", Description: "A king.", ReleaseYear: 1985, Duration: 162 * time.Minute, LanguageCode: "ja", Tags: []string{"war"}},
			State:        domain.VideoStatePublished, Version: 2, CreateTime: epoch, UpdateTime: epoch, PublishTime: epoch,
			CreateUser: "eve@example.com", UpdateUser: "reaction video-rating",
		},
	}
}

// encoded is the event of published as a protobuf message, after a change.
func encoded(t testing.TB, change func(*videov1.VideoEvent)) []byte {
	t.Helper()
	m, err := event.EncodeVideo(published())
	must(t, err)
	pb := &videov1.VideoEvent{}
	must(t, proto.Unmarshal(m.Payload, pb))
	change(pb)
	payload, err := proto.Marshal(pb)
	must(t, err)
	return payload
}

// around returns the message of the event published, with the given payload.
func around(t testing.TB, payload []byte) envelope.Message {
	t.Helper()
	m, err := event.EncodeVideo(published())
	must(t, err)
	m.Payload = payload
	return m
}

// Every part of a message besides its payload has the value of the event.
func TestEncodeFillsTheMessage(t *testing.T) {
	got, err := event.EncodeVideo(published())
	must(t, err)
	want := envelope.Message{
		ID: uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1003"), AggregateType: "video", AggregateID: videoID.String(),
		Type: "VideoPublished", Version: 2, SchemaVersion: 1, Payload: got.Payload, OccurredAt: epoch,
	}
	same(t, "message", want, got)
	if want := (envelope.Aggregate{Type: "video", ID: videoID.String()}); got.Aggregate() != want {
		t.Errorf("Aggregate() = %v, want %v", got.Aggregate(), want)
	}
}

// An event that the contract cannot express is a defect: EncodeVideo returns an error.
func TestEncodeRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*domain.VideoEvent)
	}{
		{"no type", func(e *domain.VideoEvent) { e.Type = "" }},
		{"unknown type", func(e *domain.VideoEvent) { e.Type = "VideoBurnt" }},
		{"no state", func(e *domain.VideoEvent) { e.Video.State = "" }},
		{"unknown state", func(e *domain.VideoEvent) { e.Video.State = "hidden" }},
		{"text that is no UTF-8", func(e *domain.VideoEvent) { e.Video.Title = "\xff" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := published()
			test.change(e)
			if got, err := event.EncodeVideo(e); err == nil {
				t.Errorf("Encode() = %v, want an error", got)
			}
		})
	}
}

// size returns the bytes of a message as the quotas of Pub/Sub count them: data,
// attributes and ordering key.
func size(m envelope.Message) int {
	n := len(m.Payload) + len(m.AggregateID)
	for name, value := range m.Attributes() {
		n += len(name) + len(value)
	}
	return n
}

// The largest event that is accepted reaches the limit exactly, with a traceparent and
// the mark of a snapshot. The limit leaves a thousand of the broker's 10,000,000 bytes
// for the rest of the request. One more byte is the caller's mistake.
func TestEncodeRefusesWhatTheBrokerWould(t *testing.T) {
	const limit = 9_999_000
	e := published()
	e.Causation = domain.Causation{CausationID: e.ID, CorrelationID: e.ID}
	e.Video.Description = strings.Repeat("x", limit-1000)
	m, err := event.EncodeVideo(e)
	if err != nil {
		t.Fatalf("Encode() of %d bytes = %v", size(m), err)
	}
	full := func() int {
		m.Traceparent, m.Repeat = traceparent, envelope.RepeatSnapshot
		return size(m)
	}
	e.Video.Description = strings.Repeat("x", len(e.Video.Description)+limit-full())
	m, err = event.EncodeVideo(e)
	if err != nil || full() != limit {
		t.Errorf("Encode() = %d bytes, %v, want %d, nil", full(), err, limit)
	}
	e.Video.Description += "x"
	_, err = event.EncodeVideo(e)
	var domainErr *problem.Error
	if !errors.As(err, &domainErr) || domainErr.Kind != problem.Invalid {
		t.Errorf("Encode() of one byte more = %v, want Invalid", err)
	}
}

// A message that cannot be read, or would be misread, is a DecodeError.
func TestDecodeRefuses(t *testing.T) {
	valid := encoded(t, func(*videov1.VideoEvent) {})
	_, err := event.DecodeVideo(around(t, valid))
	must(t, err)
	changed := func(change func(*videov1.VideoEvent)) []byte { return encoded(t, change) }
	for _, test := range []struct {
		name    string
		payload []byte
	}{
		{"nothing", nil},
		{"broken bytes", []byte("\xff\xff\xff")},
		{"cut short", valid[:len(valid)-1]},
		{"JSON", []byte(`{"eventId": "01890a5d-ac96-7f00-8b02-0c0d0e0f1003"}`)},
		{"text that is no UTF-8", protowire.AppendBytes(protowire.AppendTag(slices.Clip(valid), 1, protowire.BytesType), []byte{0xff})},

		{"no event id", changed(func(pb *videov1.VideoEvent) { pb.EventId = "" })},
		{"event id that is none", changed(func(pb *videov1.VideoEvent) { pb.EventId = "event-1" })},
		{"event id too long", changed(func(pb *videov1.VideoEvent) { pb.EventId += "0" })},
		{"no video id", changed(func(pb *videov1.VideoEvent) { pb.VideoId = "" })},
		{"video id with its prefix", changed(func(pb *videov1.VideoEvent) { pb.VideoId = "videos/" + pb.VideoId })},
		{"version 0", changed(func(pb *videov1.VideoEvent) { pb.Version = 0 })},
		{"negative version", changed(func(pb *videov1.VideoEvent) { pb.Version = -1 })},
		{"version beyond the last", changed(func(pb *videov1.VideoEvent) { pb.Version = envelope.MaxVersion + 1 })},
		{"the last version there is", changed(func(pb *videov1.VideoEvent) { pb.Version = math.MaxInt64 })},
		{"no video", changed(func(pb *videov1.VideoEvent) { pb.Video = nil })},
		{"no state", changed(func(pb *videov1.VideoEvent) { pb.Video.State = 0 })},
		{"unknown state", changed(func(pb *videov1.VideoEvent) { pb.Video.State = 3 })},
		{"duration beyond what a duration can hold", changed(func(pb *videov1.VideoEvent) { pb.Video.DurationMs = math.MaxInt64 / 1000 })},
		{"negative duration beyond the same", changed(func(pb *videov1.VideoEvent) { pb.Video.DurationMs = math.MinInt64 })},
		{"create time before year 1", changed(func(pb *videov1.VideoEvent) { pb.Video.CreateTimeMs = -62135596800001 })},
		{"update time after year 9999", changed(func(pb *videov1.VideoEvent) { pb.Video.UpdateTimeMs = 253402300800000 })},
		{"publish time after all times", changed(func(pb *videov1.VideoEvent) { pb.Video.PublishTimeMs = math.MaxInt64 })},
		{"delete time before all times", changed(func(pb *videov1.VideoEvent) { pb.Video.DeleteTimeMs = math.MinInt64 })},
		{"purge time before all times", changed(func(pb *videov1.VideoEvent) { pb.Video.PurgeTimeMs = math.MinInt64 })},
		{"occurred in seconds times a million", changed(func(pb *videov1.VideoEvent) { pb.OccurredAtMs *= 1_000_000 })},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := event.DecodeVideo(around(t, test.payload))
			var decodeErr *envelope.DecodeError
			if !errors.As(err, &decodeErr) {
				t.Fatalf("Decode() = %+v, %v, want a DecodeError", got, err)
			}
			if decodeErr.Reason == "" || !strings.Contains(err.Error(), decodeErr.Reason) {
				t.Errorf("Error() = %q, want it to have the reason %q", err, decodeErr.Reason)
			}
		})
	}
}

// A message of another aggregate type or a newer contract, and one that contradicts
// its payload, is a DecodeError.
func TestDecodeChecksTheEnvelope(t *testing.T) {
	for _, test := range []struct {
		change func(*envelope.Message)
		reason string
	}{
		{func(m *envelope.Message) { m.AggregateType = "another" }, "attribute aggregate_type is"},
		{func(m *envelope.Message) { m.SchemaVersion = event.VideoSchemaVersion + 1 }, "schema version 2 is newer"},
		{func(m *envelope.Message) { m.ID[0]++ }, "attribute event_id is"},
		{func(m *envelope.Message) { m.AggregateID = "videos/" + m.AggregateID }, "attribute aggregate_id is"},
		{func(m *envelope.Message) { m.Version++ }, "attribute version is"},
	} {
		m, err := event.EncodeVideo(published())
		must(t, err)
		test.change(&m)
		got, err := event.DecodeVideo(m)
		if decodeErr, ok := errors.AsType[*envelope.DecodeError](err); !ok || !strings.HasPrefix(decodeErr.Reason, test.reason) {
			t.Errorf("Decode() = %+v, %v, want a DecodeError: %s", got, err, test.reason)
		}
	}
}

// If only a newer build knows the type of an event, the decoded event has no type. All
// other fields are decoded.
func TestDecodeOfUnknownType(t *testing.T) {
	payload := encoded(t, func(pb *videov1.VideoEvent) { pb.Type = nil })
	payload = protowire.AppendTag(payload, 99, protowire.BytesType)
	payload = protowire.AppendBytes(payload, []byte("\x0a\x03new"))
	want := *published()
	want.Type = ""
	m := around(t, payload)
	m.Type = "VideoFeatured"
	got, err := event.DecodeVideo(m)
	must(t, err)
	same(t, "event", want, got)
}

// A field that only a newer build knows is ignored, wherever it is.
func TestDecodeIgnoresUnknownFields(t *testing.T) {
	for _, number := range []protowire.Number{6, 100, 536_870_911} {
		payload := encoded(t, func(pb *videov1.VideoEvent) {
			pb.Video.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 90, protowire.BytesType), "new"))
		})
		payload = protowire.AppendVarint(protowire.AppendTag(payload, number, protowire.VarintType), 7)
		got, err := event.DecodeVideo(around(t, payload))
		must(t, err)
		same(t, fmt.Sprint("event with field ", number), *published(), got)
	}
}

// DecodeVideo returns an event or a DecodeError for any bytes. A decoded event of a
// known type can be encoded again, and keeps its meaning.
func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		payload := s.payload(f)
		f.Add(payload, int32(1))
		f.Add(payload[:len(payload)/2], int32(1))
	}
	f.Add([]byte(nil), int32(0))
	f.Add(encoded(f, func(pb *videov1.VideoEvent) { pb.Type = nil }), int32(1))
	f.Add(encoded(f, func(pb *videov1.VideoEvent) { pb.Video.DurationMs = math.MaxInt64 / 1000 }), int32(1))
	f.Add(encoded(f, func(pb *videov1.VideoEvent) { pb.Video.CreateTimeMs = math.MinInt64 }), int32(1))
	f.Fuzz(func(t *testing.T, payload []byte, schemaVersion int32) {
		var pb videov1.VideoEvent
		_ = proto.Unmarshal(payload, &pb) // DecodeVideo reports a broken payload
		id, _ := uuid.Parse(pb.GetEventId())
		videoID, _ := uuid.Parse(pb.GetVideoId())
		e, err := event.DecodeVideo(envelope.Message{
			ID: id, AggregateType: event.AggregateVideo, AggregateID: videoID.String(), Version: pb.GetVersion(), SchemaVersion: schemaVersion, Payload: payload,
		})
		if err != nil {
			if _, ok := errors.AsType[*envelope.DecodeError](err); !ok {
				t.Errorf("Decode() = %v, want a DecodeError", err)
			}
			return
		}
		if e.Type == "" { // unknown to this build, so it cannot be written either
			e.Type = domain.VideoUpdated
		}
		m, err := event.EncodeVideo(&e)
		if err != nil {
			t.Fatalf("Encode(%+v) = %v", e, err)
		}
		again, err := event.DecodeVideo(m)
		if err != nil {
			t.Fatalf("Decode() of Encode(%+v) = %v", e, err)
		}
		same(t, "event", e, again)
	})
}

var must, same = pgtest.Must, pgtest.Same
