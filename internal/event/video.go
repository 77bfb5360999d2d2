package event

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
)

const (
	// AggregateVideo is the aggregate type of a video.
	AggregateVideo = "video"
	// VideoSchemaVersion is the version of the contract that EncodeVideo writes. It grows only if
	// an old consumer would misread the new form. A new field is not a new version.
	VideoSchemaVersion = 1
)

// EncodeVideo returns the durable form of an event. If the event exceeds the limits of the
// broker, it returns a problem.Error of kind Invalid.
func EncodeVideo(e *domain.VideoEvent) (envelope.Message, error) {
	v := e.Video
	pb := &videov1.VideoEvent{
		EventId: e.ID.String(), VideoId: v.ID.String(), Version: v.Version,
		OccurredAtMs: e.OccurredAt.UnixMilli(),
		Video: &videov1.VideoEvent_Snapshot{
			CreateTimeMs: v.CreateTime.UnixMilli(), UpdateTimeMs: v.UpdateTime.UnixMilli(),
			DeleteTimeMs: unixMilli(v.DeleteTime), PublishTimeMs: unixMilli(v.PublishTime), PurgeTimeMs: unixMilli(v.PurgeTime),
			CreateUser: v.CreateUser, UpdateUser: v.UpdateUser,
			Title:        v.Title,
			Description:  v.Description,
			ReleaseYear:  v.ReleaseYear,
			DurationMs:   v.Duration.Milliseconds(),
			LanguageCode: v.LanguageCode,
			Tags:         v.Tags,
		},
	}
	var known bool
	if pb.Video.State, known = videoStates[v.State]; !known {
		return envelope.Message{}, fmt.Errorf("encode event %s: unknown state %q", e.ID, v.State)
	}
	switch e.Type {
	case domain.Snapshot: // nothing has happened
	case domain.VideoCreated:
		pb.Type = &videov1.VideoEvent_Created{Created: &videov1.VideoEvent_VideoCreated{}}
	case domain.VideoUpdated:
		pb.Type = &videov1.VideoEvent_Updated{Updated: &videov1.VideoEvent_VideoUpdated{ChangedFields: e.ChangedFields}}
	case domain.VideoDeleted:
		pb.Type = &videov1.VideoEvent_Deleted{Deleted: &videov1.VideoEvent_VideoDeleted{}}
	case domain.VideoUndeleted:
		pb.Type = &videov1.VideoEvent_Undeleted{Undeleted: &videov1.VideoEvent_VideoUndeleted{}}
	case domain.VideoPublished:
		pb.Type = &videov1.VideoEvent_Published{Published: &videov1.VideoEvent_VideoPublished{}}
	case domain.VideoUnpublished:
		pb.Type = &videov1.VideoEvent_Unpublished{Unpublished: &videov1.VideoEvent_VideoUnpublished{}}
	case domain.VideoPurged:
		pb.Type = &videov1.VideoEvent_Purged{Purged: &videov1.VideoEvent_VideoPurged{}}
	default:
		return envelope.Message{}, fmt.Errorf("encode event %s: unknown type %q", e.ID, e.Type)
	}
	payload, err := bytesOf(pb)
	if err != nil {
		return envelope.Message{}, err
	}
	return withinLimits(envelope.Message{
		ID: e.ID, AggregateType: AggregateVideo, AggregateID: v.ID.String(), Type: string(e.Type), Version: v.Version,
		SchemaVersion: VideoSchemaVersion, Payload: payload, OccurredAt: e.OccurredAt,
		Caller: e.Caller, Causation: envelope.Causation(e.Causation),
	})
}

// DecodeVideo reads an event of a video from its message. For a snapshot, or a type that this
// build does not know, Type is empty, and the rest is complete. Every error is an
// *envelope.DecodeError.
func DecodeVideo(m envelope.Message) (domain.VideoEvent, error) {
	if err := checkContract(m, AggregateVideo, VideoSchemaVersion); err != nil {
		return domain.VideoEvent{}, err
	}
	var pb videov1.VideoEvent
	if err := proto.Unmarshal(m.Payload, &pb); err != nil {
		return domain.VideoEvent{}, &envelope.DecodeError{Reason: "payload is not a VideoEvent", Err: err}
	}
	snapshot := pb.GetVideo()
	if snapshot == nil {
		return domain.VideoEvent{}, envelope.Undecodable("video is missing")
	}
	var r envelope.Reader
	e := domain.VideoEvent{
		ID: r.ID("event_id", pb.GetEventId()),
		Video: domain.Video{
			ID: r.ID("video_id", pb.GetVideoId()),
			VideoDetails: domain.VideoDetails{
				Title:        snapshot.GetTitle(),
				Description:  snapshot.GetDescription(),
				ReleaseYear:  snapshot.GetReleaseYear(),
				Duration:     time.Duration(r.Within("duration_ms", snapshot.GetDurationMs(), -envelope.MaxMillis, envelope.MaxMillis)) * time.Millisecond,
				LanguageCode: snapshot.GetLanguageCode(),
				Tags:         snapshot.GetTags(),
			},
			State:       envelope.ValueOf(&r, "state", snapshot.GetState(), videoStates),
			Version:     r.Version(pb.GetVersion()),
			CreateTime:  r.Time("create_time_ms", snapshot.GetCreateTimeMs()),
			UpdateTime:  r.Time("update_time_ms", snapshot.GetUpdateTimeMs()),
			DeleteTime:  r.Time("delete_time_ms", snapshot.GetDeleteTimeMs()),
			PublishTime: r.Time("publish_time_ms", snapshot.GetPublishTimeMs()),
			PurgeTime:   r.Time("purge_time_ms", snapshot.GetPurgeTimeMs()),
			CreateUser:  snapshot.GetCreateUser(),
			UpdateUser:  snapshot.GetUpdateUser(),
		},
		OccurredAt:    r.Time("occurred_at_ms", pb.GetOccurredAtMs()),
		Type:          typeOf(&pb),
		ChangedFields: pb.GetUpdated().GetChangedFields(),
	}
	if err := r.Err(); err != nil {
		return domain.VideoEvent{}, err
	}
	return e, checkEnvelope(m, e.ID, e.Video.ID, e.Video.Version)
}

var videoStates = map[domain.VideoState]videov1.VideoEvent_State{
	domain.VideoStateDraft:     videov1.VideoEvent_STATE_DRAFT,
	domain.VideoStatePublished: videov1.VideoEvent_STATE_PUBLISHED,
}
