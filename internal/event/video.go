package event

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
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
	return withinLimits(envelope.Message{
		ID:            e.ID,
		AggregateType: AggregateVideo,
		AggregateID:   e.Video.ID.String(),
		Type:          string(e.Type),
		Version:       e.Video.Version,
		SchemaVersion: SchemaVersion,
		Payload:       payload,
		OccurredAt:    e.OccurredAt,
	})
}

// EncodeSnapshot returns the snapshot of a video, as Encode does.
func EncodeSnapshot(v domain.Video) (envelope.Message, error) {
	return asSnapshot(Encode(&domain.Event{
		ID: snapshotID(AggregateVideo, v.ID, v.Version), Type: domain.Snapshot, Video: v, OccurredAt: v.UpdateTime,
	}))
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
			PurgeTimeMs:   unixMilli(v.PurgeTime),
		},
	}
	var known bool
	if pb.Video.State, known = states[v.State]; !known {
		return nil, fmt.Errorf("encode event %s: unknown state %q", e.ID, v.State)
	}
	switch e.Type {
	case domain.Snapshot: // nothing has happened
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
	case domain.VideoPurged:
		pb.Type = &videov1.VideoEvent_Purged{Purged: &videov1.VideoEvent_VideoPurged{}}
	default:
		return nil, fmt.Errorf("encode event %s: unknown type %q", e.ID, e.Type)
	}
	return bytesOf(pb)
}

// Decode reads an event of a video from its message. If this build does not know the type
// of the event, Type is empty. The rest is complete then, because the state means the same,
// whatever happened. All other mistakes are an *envelope.DecodeError: another aggregate
// type, a newer schema version, missing parts, broken bytes, numbers out of range, or an
// envelope that contradicts the payload.
func Decode(m envelope.Message) (domain.Event, error) {
	if err := checkContract(m, AggregateVideo, SchemaVersion); err != nil {
		return domain.Event{}, err
	}
	e, err := unmarshal(m.Payload)
	if err != nil {
		return domain.Event{}, err
	}
	return e, checkEnvelope(m, e.ID, e.Video.ID, e.Video.Version)
}

func unmarshal(payload []byte) (domain.Event, error) {
	var pb videov1.VideoEvent
	if err := proto.Unmarshal(payload, &pb); err != nil {
		return domain.Event{}, &envelope.DecodeError{Reason: "payload is not a VideoEvent", Err: err}
	}
	snapshot := pb.GetVideo()
	if snapshot == nil {
		return domain.Event{}, envelope.Undecodable("video is missing")
	}
	var r envelope.Reader
	e := domain.Event{
		ID: r.ID("event_id", pb.GetEventId()),
		Video: domain.Video{
			ID: r.ID("video_id", pb.GetVideoId()),
			Details: domain.Details{
				Title:        snapshot.GetTitle(),
				Description:  snapshot.GetDescription(),
				ReleaseYear:  snapshot.GetReleaseYear(),
				Duration:     r.Duration("duration_ms", snapshot.GetDurationMs()),
				LanguageCode: snapshot.GetLanguageCode(),
				Tags:         snapshot.GetTags(),
			},
			State:       envelope.ValueOf(&r, "state", snapshot.GetState(), states),
			Version:     r.Version(pb.GetVersion()),
			CreateTime:  r.Time("create_time_ms", snapshot.GetCreateTimeMs()),
			UpdateTime:  r.Time("update_time_ms", snapshot.GetUpdateTimeMs()),
			PublishTime: r.Time("publish_time_ms", snapshot.GetPublishTimeMs()),
			DeleteTime:  r.Time("delete_time_ms", snapshot.GetDeleteTimeMs()),
			PurgeTime:   r.Time("purge_time_ms", snapshot.GetPurgeTimeMs()),
		},
		OccurredAt: r.Time("occurred_at_ms", pb.GetOccurredAtMs()),
	}
	if err := r.Err(); err != nil {
		return domain.Event{}, err
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
	case *videov1.VideoEvent_Purged:
		return domain.VideoPurged, nil
	}
	return "", nil
}

var states = map[domain.State]videov1.VideoEvent_State{
	domain.Draft:     videov1.VideoEvent_STATE_DRAFT,
	domain.Published: videov1.VideoEvent_STATE_PUBLISHED,
}
