package event

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	playlistv1 "example.com/videocatalog/api/proto/playlist/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

// AggregatePlaylist is the aggregate type of a playlist.
const AggregatePlaylist = "playlist"

// PlaylistTypes are the event types of playlists that this build knows.
var PlaylistTypes = []string{
	string(domain.PlaylistCreated), string(domain.PlaylistRenamed), string(domain.PlaylistItemAdded), string(domain.PlaylistDeleted),
}

// EncodePlaylist returns the durable form of an event.
func EncodePlaylist(e *domain.PlaylistEvent) (envelope.Message, error) {
	p := e.Playlist
	pb := &playlistv1.PlaylistEvent{
		EventId: e.ID.String(), PlaylistId: p.ID.String(), Version: p.Version, OccurredAtMs: e.OccurredAt.UnixMilli(),
		Title: p.Title, CreateTimeMs: p.CreateTime.UnixMilli(), DeleteTimeMs: unixMilli(p.DeleteTime),
	}
	for _, id := range p.VideoIDs {
		pb.VideoIds = append(pb.VideoIds, id.String())
	}
	switch e.Type {
	case domain.PlaylistCreated:
		pb.Type = &playlistv1.PlaylistEvent_Created{Created: &playlistv1.PlaylistEvent_PlaylistCreated{}}
	case domain.PlaylistRenamed:
		pb.Type = &playlistv1.PlaylistEvent_Renamed{Renamed: &playlistv1.PlaylistEvent_PlaylistRenamed{}}
	case domain.PlaylistItemAdded:
		pb.Type = &playlistv1.PlaylistEvent_ItemAdded{ItemAdded: &playlistv1.PlaylistEvent_PlaylistItemAdded{}}
	case domain.PlaylistDeleted:
		pb.Type = &playlistv1.PlaylistEvent_Deleted{Deleted: &playlistv1.PlaylistEvent_PlaylistDeleted{}}
	default:
		return envelope.Message{}, fmt.Errorf("encode event %s: unknown type %q", e.ID, e.Type)
	}
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(pb)
	if err != nil {
		return envelope.Message{}, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	m := envelope.Message{
		ID: e.ID, AggregateType: AggregatePlaylist, AggregateID: p.ID.String(), Type: string(e.Type),
		Version: p.Version, SchemaVersion: 1, Payload: payload, OccurredAt: e.OccurredAt,
	}
	if err := m.CheckLimits(); err != nil {
		return envelope.Message{}, &problem.Error{Kind: problem.Invalid, Message: err.Error()}
	}
	return m, nil
}

// DecodePlaylist reads an event of a playlist from its message.
func DecodePlaylist(m envelope.Message) (domain.PlaylistEvent, error) {
	if m.SchemaVersion > 1 {
		return domain.PlaylistEvent{}, envelope.Undecodable("schema version %d is newer than 1, the newest this build reads", m.SchemaVersion)
	}
	var pb playlistv1.PlaylistEvent
	if err := proto.Unmarshal(m.Payload, &pb); err != nil {
		return domain.PlaylistEvent{}, &envelope.DecodeError{Reason: "payload is not a PlaylistEvent", Err: err}
	}
	id, err := uuid.Parse(pb.GetPlaylistId())
	if err != nil {
		return domain.PlaylistEvent{}, &envelope.DecodeError{Reason: "playlist_id", Err: err}
	}
	if m.ID.String() != pb.GetEventId() || m.AggregateID != id.String() || m.Version != pb.GetVersion() {
		return domain.PlaylistEvent{}, envelope.Undecodable("attributes contradict the payload")
	}
	p := domain.Playlist{
		ID: id, Title: pb.GetTitle(), Version: pb.GetVersion(), CreateTime: timeOf(pb.GetCreateTimeMs()),
		UpdateTime: timeOf(pb.GetOccurredAtMs()), DeleteTime: timeOf(pb.GetDeleteTimeMs()),
	}
	for _, text := range pb.GetVideoIds() {
		video, err := uuid.Parse(text)
		if err != nil {
			return domain.PlaylistEvent{}, &envelope.DecodeError{Reason: "video_ids", Err: err}
		}
		p.VideoIDs = append(p.VideoIDs, video)
	}
	e := domain.PlaylistEvent{ID: m.ID, Playlist: p, OccurredAt: time.UnixMilli(pb.GetOccurredAtMs()).UTC()}
	switch pb.GetType().(type) {
	case *playlistv1.PlaylistEvent_Created:
		e.Type = domain.PlaylistCreated
	case *playlistv1.PlaylistEvent_Renamed:
		e.Type = domain.PlaylistRenamed
	case *playlistv1.PlaylistEvent_ItemAdded:
		e.Type = domain.PlaylistItemAdded
	case *playlistv1.PlaylistEvent_Deleted:
		e.Type = domain.PlaylistDeleted
	}
	return e, nil
}
