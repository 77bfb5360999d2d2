// Package event encodes. It knows the durable form of an event, made once, in
// the transaction that records the event, and read once, by a consumer: the
// outbox row and the Pub/Sub message carry the same bytes.
//
// [Encode] makes a [Message] of a domain event and refuses one that the broker
// would refuse, so that such an event is never committed. [Decode] reads the
// bytes back, of this version of the contract and of older ones. What cannot
// be read is a [*DecodeError].
//
// The package also has the types in which the store and the publisher speak
// about a claim on the outbox ([Claim], [Settlement]); neither of the two
// imports the other.
package event

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
)

const (
	// AggregateVideo is the aggregate type of a video.
	AggregateVideo = "video"
	// SchemaVersion is the version of the contract that Encode writes. It grows
	// only when an old consumer would misread the new form; a field added is
	// no new version.
	SchemaVersion = 1
	// MaxVersion bounds the version of an event. No video gets there, and an event
	// of a stranger that is beyond could not be followed by any of its owner.
	MaxVersion = 1 << 40
)

// Message is an event in its durable form.
type Message struct {
	ID            uuid.UUID
	AggregateType string
	AggregateID   string // also the ordering key
	Type          string
	Version       int64
	SchemaVersion int32
	Payload       []byte
	OccurredAt    time.Time
	Traceparent   string // W3C trace context; may be empty
}

// The names of the attributes of a Pub/Sub message.
const (
	AttrEventID       = "event_id"
	AttrEventType     = "event_type"
	AttrAggregateType = "aggregate_type"
	AttrAggregateID   = "aggregate_id"
	AttrVersion       = "version"
	AttrSchemaVersion = "schema_version"
	AttrOccurredAt    = "occurred_at" // RFC 3339 with nanoseconds, UTC
	AttrTraceparent   = "traceparent"
)

// Attributes returns the attributes of the Pub/Sub message.
func (m Message) Attributes() map[string]string {
	attributes := map[string]string{
		AttrEventID:       m.ID.String(),
		AttrEventType:     m.Type,
		AttrAggregateType: m.AggregateType,
		AttrAggregateID:   m.AggregateID,
		AttrVersion:       strconv.FormatInt(m.Version, 10),
		AttrSchemaVersion: strconv.FormatInt(int64(m.SchemaVersion), 10),
		AttrOccurredAt:    m.OccurredAt.UTC().Format(time.RFC3339Nano),
	}
	if m.Traceparent != "" {
		attributes[AttrTraceparent] = m.Traceparent
	}
	return attributes
}

// Encode makes the durable form of an event. An event beyond the limits of the
// broker is a domain.Error of kind Invalid.
func Encode(e *domain.Event) (Message, error) {
	payload, err := marshal(e)
	if err != nil {
		return Message{}, err
	}
	m := Message{
		ID:            e.ID,
		AggregateType: AggregateVideo,
		AggregateID:   e.Video.ID.String(),
		Type:          string(e.Type),
		Version:       e.Video.Version,
		SchemaVersion: SchemaVersion,
		Payload:       payload,
		OccurredAt:    e.OccurredAt,
	}
	return m, m.checkLimits()
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
	// Deterministic: the same event has the same bytes, and the golden samples hold.
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(pb)
	if err != nil {
		return nil, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	return payload, nil
}

// DecodeError says why a message cannot be read. Reading it again will not
// help; a newer build may.
type DecodeError struct {
	Reason string
	Err    error // may be nil
}

func (e *DecodeError) Error() string {
	if e.Err != nil {
		return "decode event: " + e.Reason + ": " + e.Err.Error()
	}
	return "decode event: " + e.Reason
}

// Unwrap returns the cause.
func (e *DecodeError) Unwrap() error { return e.Err }

func undecodable(format string, args ...any) error {
	return &DecodeError{Reason: fmt.Sprintf(format, args...)}
}

// Decode reads an event from the payload and the attributes of a message. An
// event of a type that this build does not know has an empty Type and is whole
// otherwise: the state it carries means the same whatever happened. A newer
// schema version, missing parts, broken bytes and numbers out of range are a
// *DecodeError.
func Decode(payload []byte, attributes map[string]string) (domain.Event, error) {
	version, err := strconv.Atoi(attributes[AttrSchemaVersion])
	if err != nil || version < 1 {
		return domain.Event{}, undecodable("attribute %s is %q, want a number from 1", AttrSchemaVersion, attributes[AttrSchemaVersion])
	}
	if version > SchemaVersion {
		return domain.Event{}, undecodable("schema version %d is newer than %d, the newest this build reads", version, SchemaVersion)
	}
	var pb videov1.VideoEvent
	if err := proto.Unmarshal(payload, &pb); err != nil {
		return domain.Event{}, &DecodeError{Reason: "payload is no VideoEvent", Err: err}
	}
	id, err := uuid.Parse(pb.GetEventId())
	if err != nil {
		return domain.Event{}, &DecodeError{Reason: "event_id", Err: err}
	}
	videoID, err := uuid.Parse(pb.GetVideoId())
	if err != nil {
		return domain.Event{}, &DecodeError{Reason: "video_id", Err: err}
	}
	if v := pb.GetVersion(); v < 1 || v > MaxVersion {
		return domain.Event{}, undecodable("version is %d, want a number from 1 to %d", v, int64(MaxVersion))
	}
	snapshot := pb.GetVideo()
	if snapshot == nil {
		return domain.Event{}, undecodable("video is missing")
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
	switch typ := pb.GetType().(type) {
	case *videov1.VideoEvent_Created:
		e.Type = domain.VideoCreated
	case *videov1.VideoEvent_Updated:
		e.Type = domain.VideoUpdated
		e.ChangedFields = typ.Updated.GetChangedFields()
	case *videov1.VideoEvent_Published:
		e.Type = domain.VideoPublished
	case *videov1.VideoEvent_Unpublished:
		e.Type = domain.VideoUnpublished
	case *videov1.VideoEvent_Deleted:
		e.Type = domain.VideoDeleted
	case *videov1.VideoEvent_Undeleted:
		e.Type = domain.VideoUndeleted
	}
	return e, nil
}

func stateOf(state videov1.VideoEvent_State) (domain.State, error) {
	switch state {
	case videov1.VideoEvent_STATE_DRAFT:
		return domain.Draft, nil
	case videov1.VideoEvent_STATE_PUBLISHED:
		return domain.Published, nil
	default:
		return "", undecodable("state %d is unknown", state)
	}
}

// checkRanges refuses what would be misread: a duration that wraps around in
// Go, and times that no API can tell, because google.protobuf.Timestamp and
// RFC 3339 end with the years 1 and 9999.
func checkRanges(pb *videov1.VideoEvent) error {
	const (
		longest = math.MaxInt64 / int64(time.Millisecond)
		first   = -62_135_596_800_000 // 0001-01-01T00:00:00Z
		last    = 253_402_300_799_999 // 9999-12-31T23:59:59.999Z
	)
	snapshot := pb.GetVideo()
	if ms := snapshot.GetDurationMs(); ms < -longest || ms > longest {
		return undecodable("duration_ms %d is out of range", ms)
	}
	for _, ms := range []int64{
		pb.GetOccurredAtMs(), snapshot.GetCreateTimeMs(), snapshot.GetUpdateTimeMs(), snapshot.GetPublishTimeMs(), snapshot.GetDeleteTimeMs(),
	} {
		if ms < first || ms > last {
			return undecodable("time %d ms is out of range", ms)
		}
	}
	return nil
}

// unixMilli writes the zero time as 0, timeOf reads it back.
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
