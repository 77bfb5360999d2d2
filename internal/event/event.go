// Package event encodes. It owns the durable form of an event. The form is made once, in
// the transaction that records the event, and a consumer reads it. The outbox row and the
// Pub/Sub message carry the same bytes.
//
// [Encode] makes an [envelope.Message] from a domain event. It refuses an event that the
// broker would refuse, so that such an event is never committed. [Decode] reads the bytes,
// of this version of the contract and of older ones. If they cannot be read, it returns a
// [*envelope.DecodeError].
package event

import (
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

const (
	// AggregateVideo is the aggregate type of a video.
	AggregateVideo = "video"
	// SchemaVersion is the version of the contract that Encode writes. It grows only if an
	// old consumer would misread the new form. A new field is not a new version.
	SchemaVersion = 1
)

// Encode returns the durable form of an event. If the event exceeds the limits of the
// broker, it returns a problem.Error of kind Invalid.
func Encode(e *domain.Event) (envelope.Message, error) {
	payload, err := marshal(e)
	if err != nil {
		return envelope.Message{}, err
	}
	m := envelope.Message{
		ID:            e.ID,
		AggregateType: AggregateVideo,
		AggregateID:   e.Video.ID.String(),
		Type:          string(e.Type),
		Version:       e.Video.Version,
		SchemaVersion: SchemaVersion,
		Payload:       payload,
		OccurredAt:    e.OccurredAt,
	}
	if err := m.CheckLimits(); err != nil {
		return envelope.Message{}, &problem.Error{Kind: problem.Invalid, Message: err.Error()}
	}
	return m, nil
}

func marshal(e *domain.Event) ([]byte, error) {
	v := e.Video
	pb := &videov1.VideoEvent{
		EventId:      e.ID.String(),
		VideoId:      v.ID.String(),
		Version:      v.Version,
		OccurredAtMs: e.OccurredAt.UnixMilli(),
		Video: &videov1.VideoEvent_Snapshot{
			Title:         v.Title,
			Description:   v.Description,
			ReleaseYear:   v.ReleaseYear,
			DurationMs:    v.Duration.Milliseconds(),
			LanguageCode:  v.LanguageCode,
			Tags:          v.Tags,
			CreateTimeMs:  v.CreateTime.UnixMilli(),
			UpdateTimeMs:  v.UpdateTime.UnixMilli(),
			PublishTimeMs: unixMilli(v.PublishTime),
			DeleteTimeMs:  unixMilli(v.DeleteTime),
		},
	}
	switch v.State {
	case domain.Draft:
		pb.Video.State = videov1.VideoEvent_STATE_DRAFT
	case domain.Published:
		pb.Video.State = videov1.VideoEvent_STATE_PUBLISHED
	default:
		return nil, fmt.Errorf("encode event %s: unknown state %q", e.ID, v.State)
	}
	switch e.Type {
	case domain.VideoCreated:
		pb.Type = &videov1.VideoEvent_Created{Created: &videov1.VideoEvent_VideoCreated{}}
	case domain.VideoUpdated:
		pb.Type = &videov1.VideoEvent_Updated{Updated: &videov1.VideoEvent_VideoUpdated{ChangedFields: e.ChangedFields}}
	case domain.VideoPublished:
		pb.Type = &videov1.VideoEvent_Published{Published: &videov1.VideoEvent_VideoPublished{}}
	case domain.VideoUnpublished:
		pb.Type = &videov1.VideoEvent_Unpublished{Unpublished: &videov1.VideoEvent_VideoUnpublished{}}
	case domain.VideoDeleted:
		pb.Type = &videov1.VideoEvent_Deleted{Deleted: &videov1.VideoEvent_VideoDeleted{}}
	case domain.VideoUndeleted:
		pb.Type = &videov1.VideoEvent_Undeleted{Undeleted: &videov1.VideoEvent_VideoUndeleted{}}
	default:
		return nil, fmt.Errorf("encode event %s: unknown type %q", e.ID, e.Type)
	}
	// Deterministic: the same event always has the same bytes, and the golden samples stay
	// valid.
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(pb)
	if err != nil {
		return nil, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	return payload, nil
}

// Types are the event types that this build knows.
var Types = []string{
	string(domain.VideoCreated), string(domain.VideoUpdated), string(domain.VideoPublished),
	string(domain.VideoUnpublished), string(domain.VideoDeleted), string(domain.VideoUndeleted),
}

// Decode reads an event of a video from its message. If this build does not know the type
// of the event, Type is empty. The rest is complete then, because the state means the same,
// whatever happened. All other mistakes are an *envelope.DecodeError: another aggregate
// type, a newer schema version, missing parts, broken bytes, numbers out of range, or an
// envelope that contradicts the payload.
func Decode(m envelope.Message) (domain.Event, error) {
	if m.AggregateType != AggregateVideo {
		return domain.Event{}, envelope.Undecodable("attribute %s is %q, want %q", envelope.AttrAggregateType, m.AggregateType, AggregateVideo)
	}
	if m.SchemaVersion > SchemaVersion {
		return domain.Event{}, envelope.Undecodable("schema version %d is newer than %d, the newest this build reads", m.SchemaVersion, SchemaVersion)
	}
	e, err := unmarshal(m.Payload)
	if err != nil {
		return domain.Event{}, err
	}
	return e, checkEnvelope(m, e)
}

// checkEnvelope refuses an envelope that contradicts its payload. A reader that routes,
// filters or deduplicates by attributes would take the event for another one.
func checkEnvelope(m envelope.Message, e domain.Event) error {
	switch {
	case m.ID != e.ID:
		return envelope.Undecodable("attribute %s is %s, but the payload has %s", envelope.AttrEventID, m.ID, e.ID)
	case m.AggregateID != e.Video.ID.String():
		return envelope.Undecodable("attribute %s is %q, but the payload has %s", envelope.AttrAggregateID, m.AggregateID, e.Video.ID)
	case m.Version != e.Video.Version:
		return envelope.Undecodable("attribute %s is %d, but the payload has %d", envelope.AttrVersion, m.Version, e.Video.Version)
	}
	return nil
}

func unmarshal(payload []byte) (domain.Event, error) {
	var pb videov1.VideoEvent
	if err := proto.Unmarshal(payload, &pb); err != nil {
		return domain.Event{}, &envelope.DecodeError{Reason: "payload is not a VideoEvent", Err: err}
	}
	id, err := uuid.Parse(pb.GetEventId())
	if err != nil {
		return domain.Event{}, &envelope.DecodeError{Reason: "event_id", Err: err}
	}
	videoID, err := uuid.Parse(pb.GetVideoId())
	if err != nil {
		return domain.Event{}, &envelope.DecodeError{Reason: "video_id", Err: err}
	}
	if v := pb.GetVersion(); v < 1 || v > envelope.MaxVersion {
		return domain.Event{}, envelope.Undecodable("version is %d, want a number from 1 to %d", v, int64(envelope.MaxVersion))
	}
	snapshot := pb.GetVideo()
	if snapshot == nil {
		return domain.Event{}, envelope.Undecodable("video is missing")
	}
	state, err := stateOf(snapshot.GetState())
	if err != nil {
		return domain.Event{}, err
	}
	if err := checkRanges(&pb); err != nil {
		return domain.Event{}, err
	}
	e := domain.Event{
		ID: id,
		Video: domain.Video{
			ID: videoID,
			Details: domain.Details{
				Title:        snapshot.GetTitle(),
				Description:  snapshot.GetDescription(),
				ReleaseYear:  snapshot.GetReleaseYear(),
				Duration:     time.Duration(snapshot.GetDurationMs()) * time.Millisecond,
				LanguageCode: snapshot.GetLanguageCode(),
				Tags:         snapshot.GetTags(),
			},
			State:       state,
			Version:     pb.GetVersion(),
			CreateTime:  time.UnixMilli(snapshot.GetCreateTimeMs()).UTC(),
			UpdateTime:  time.UnixMilli(snapshot.GetUpdateTimeMs()).UTC(),
			PublishTime: timeOf(snapshot.GetPublishTimeMs()),
			DeleteTime:  timeOf(snapshot.GetDeleteTimeMs()),
		},
		OccurredAt: time.UnixMilli(pb.GetOccurredAtMs()).UTC(),
	}
	e.Type, e.ChangedFields = typeOf(&pb)
	return e, nil
}

// typeOf returns the type of an event and the fields that an update has changed. The type
// is empty if this build does not know it.
func typeOf(pb *videov1.VideoEvent) (typ domain.EventType, changed []string) {
	switch of := pb.GetType().(type) {
	case *videov1.VideoEvent_Created:
		return domain.VideoCreated, nil
	case *videov1.VideoEvent_Updated:
		return domain.VideoUpdated, of.Updated.GetChangedFields()
	case *videov1.VideoEvent_Published:
		return domain.VideoPublished, nil
	case *videov1.VideoEvent_Unpublished:
		return domain.VideoUnpublished, nil
	case *videov1.VideoEvent_Deleted:
		return domain.VideoDeleted, nil
	case *videov1.VideoEvent_Undeleted:
		return domain.VideoUndeleted, nil
	}
	return "", nil
}

func stateOf(state videov1.VideoEvent_State) (domain.State, error) {
	switch state {
	case videov1.VideoEvent_STATE_DRAFT:
		return domain.Draft, nil
	case videov1.VideoEvent_STATE_PUBLISHED:
		return domain.Published, nil
	default:
		return "", envelope.Undecodable("state %d is unknown", state)
	}
}

// checkRanges refuses values that would be misread: a duration that overflows in Go, and
// times that no API can express. google.protobuf.Timestamp and RFC 3339 cover the years 1
// to 9999.
func checkRanges(pb *videov1.VideoEvent) error {
	const (
		longest = math.MaxInt64 / int64(time.Millisecond)
		first   = -62_135_596_800_000 // 0001-01-01T00:00:00Z
		last    = 253_402_300_799_999 // 9999-12-31T23:59:59.999Z
	)
	snapshot := pb.GetVideo()
	if ms := snapshot.GetDurationMs(); ms < -longest || ms > longest {
		return envelope.Undecodable("duration_ms %d is out of range", ms)
	}
	for _, ms := range []int64{
		pb.GetOccurredAtMs(), snapshot.GetCreateTimeMs(), snapshot.GetUpdateTimeMs(), snapshot.GetPublishTimeMs(), snapshot.GetDeleteTimeMs(),
	} {
		if ms < first || ms > last {
			return envelope.Undecodable("time %d ms is out of range", ms)
		}
	}
	return nil
}

// unixMilli writes the zero time as 0. timeOf reads it back.
func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
