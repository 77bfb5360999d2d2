package domain

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
)

// VideoState is the state of a video. Deleted is not a state: a deleted video keeps its
// state until it is purged.
type VideoState string

// The states, with their values in the database.
const (
	VideoStateDraft     VideoState = "draft"
	VideoStatePublished VideoState = "published"
)

// Video is the aggregate: one transaction changes one video.
type Video struct {
	ID uuid.UUID
	VideoDetails
	State VideoState
	// Version is 1 after creation, and grows by 1 with every event.
	Version int64
	// Times are in UTC and whole milliseconds, the precision of events.
	CreateTime  time.Time
	UpdateTime  time.Time
	DeleteTime  time.Time // zero if it is not deleted
	PublishTime time.Time // zero in a draft
	PurgeTime   time.Time // zero if it is not purged
	// CreateUser and UpdateUser are the callers of the first and the last command, or the names of a reaction or a timer; empty: unknown.
	CreateUser, UpdateUser string
}

// Deleted reports whether the video is deleted.
func (v Video) Deleted() bool { return !v.DeleteTime.IsZero() }

// VideoDetails are the fields that the owner of a video sets.
type VideoDetails struct {
	Title        string
	Description  string
	ReleaseYear  int32         // 0: unknown
	Duration     time.Duration // in whole milliseconds; 0: unknown
	LanguageCode string        // BCP 47; empty: unknown
	Tags         []string
}

// changed returns the names in the API of the fields in which d differs from before.
func (d VideoDetails) changed(before VideoDetails) (fields []string) {
	for _, field := range []struct {
		name    string
		differs bool
	}{
		{"title", d.Title != before.Title},
		{"description", d.Description != before.Description},
		{"release_year", d.ReleaseYear != before.ReleaseYear},
		{"duration", d.Duration != before.Duration},
		{"language_code", d.LanguageCode != before.LanguageCode},
		{"tags", !slices.Equal(d.Tags, before.Tags)},
	} {
		if field.differs {
			fields = append(fields, field.name)
		}
	}
	return fields
}

func (d VideoDetails) validate() error {
	if blank(d.Title) {
		return problem.InvalidField("video.title", "must not be empty: at least one character must be visible")
	}
	if i := slices.IndexFunc(d.Tags, blank); i >= 0 {
		return problem.InvalidField(fmt.Sprintf("video.tags[%d]", i), "must not be empty: at least one character must be visible")
	}
	return nil
}

// owned returns d with slices of its own: events are immutable, so they must not share them.
func (d VideoDetails) owned() VideoDetails {
	d.Tags = slices.Clone(d.Tags)
	return d
}

// inMilliseconds returns d with times in the precision of events.
func (d VideoDetails) inMilliseconds() VideoDetails {
	d.Duration = d.Duration.Truncate(time.Millisecond)
	return d
}

// The events of a video.
const (
	VideoCreated     EventType = "VideoCreated"
	VideoUpdated     EventType = "VideoUpdated"
	VideoDeleted     EventType = "VideoDeleted"
	VideoUndeleted   EventType = "VideoUndeleted"
	VideoPublished   EventType = "VideoPublished"
	VideoUnpublished EventType = "VideoUnpublished"
)

// VideoEvent is a fact about a video. It is immutable.
type VideoEvent struct {
	ID   uuid.UUID // UUIDv7
	Type EventType // empty: read from a snapshot, or a type that this build does not know
	// Video is the full state after the event; its Version is the event's.
	Video         Video
	ChangedFields []string // of VideoUpdated
	OccurredAt    time.Time
	// Caller and Causation come from the Stamp. Consumers see both: the caller as the UpdateUser, but for a purge.
	Caller    string
	Causation Causation
}

// VideoDecision is a command with its arguments. It returns the event that the command
// causes for a video, or nil if the command changes nothing.
type VideoDecision func(Video) (*VideoEvent, error)

// The reasons of the errors of commands. Clients may depend on them.
const (
	// ReasonVideoDeleted: the video is deleted, and must be undeleted first.
	ReasonVideoDeleted problem.Reason = "VIDEO_DELETED"
	// ReasonVideoNotDeleted: the video cannot be undeleted, because it is not deleted.
	ReasonVideoNotDeleted problem.Reason = "VIDEO_NOT_DELETED"
	// ReasonVideoState: the state of the video does not allow the command.
	ReasonVideoState problem.Reason = "VIDEO_STATE"
)

// CreateVideo returns the first event of a new video.
func CreateVideo(id uuid.UUID, details VideoDetails, stamp Stamp) (*VideoEvent, error) {
	details = details.inMilliseconds()
	if err := details.validate(); err != nil {
		return nil, err
	}
	v := Video{
		ID: id, VideoDetails: details, State: VideoStateDraft,
		CreateTime: stamp.Time.Truncate(time.Millisecond), CreateUser: stamp.Caller,
	}
	return v.next(VideoCreated, stamp), nil
}

// UpdateVideo changes the details by a pure function. It causes no event if every field keeps its value.
func UpdateVideo(change func(*VideoDetails), expected int64, stamp Stamp) VideoDecision {
	return func(v Video) (*VideoEvent, error) {
		if err := v.mayChange(expected); err != nil {
			return nil, err
		}
		before := v.VideoDetails
		v.VideoDetails = before.owned()
		change(&v.VideoDetails)
		v.VideoDetails = v.inMilliseconds()
		changed := v.changed(before)
		if len(changed) == 0 {
			return nil, nil
		}
		if err := v.validate(); err != nil {
			return nil, err
		}
		event := v.next(VideoUpdated, stamp)
		event.ChangedFields = changed
		return event, nil
	}
}

// PublishVideo makes a video published, if it is draft. It causes no event
// if it is published already.
func PublishVideo(expected int64, stamp Stamp) VideoDecision {
	return moveVideo(VideoStatePublished, VideoPublished, expected, stamp, VideoStateDraft)
}

// UnpublishVideo makes a video draft, if it is published. It causes no event
// if it is draft already.
func UnpublishVideo(expected int64, stamp Stamp) VideoDecision {
	return moveVideo(VideoStateDraft, VideoUnpublished, expected, stamp, VideoStatePublished)
}

// moveVideo changes the state. If the current state is neither the target nor in the list from, it returns
// Precondition.
func moveVideo(to VideoState, event EventType, expected int64, stamp Stamp, from ...VideoState) VideoDecision {
	return func(v Video) (*VideoEvent, error) {
		if err := v.mayChange(expected); err != nil {
			return nil, err
		}
		if v.State == to {
			return nil, nil
		}
		if !slices.Contains(from, v.State) {
			return nil, problem.Errorf(problem.Precondition, "video %q is %s, and must be one of %v", v.ID, v.State, from).
				Because(ReasonVideoState)
		}
		v.State = to
		return v.next(event, stamp), nil
	}
}

// DeleteVideo deletes a video. For a deleted one it returns NotFound, or no event if
// allowMissing is set (AIP-135).
func DeleteVideo(allowMissing bool, expected int64, stamp Stamp) VideoDecision {
	return func(v Video) (*VideoEvent, error) {
		if v.Deleted() {
			if allowMissing {
				return nil, nil
			}
			return nil, problem.Errorf(problem.NotFound, "video %q is deleted already", v.ID)
		}
		if err := v.expect(expected); err != nil {
			return nil, err
		}
		event := v.next(VideoDeleted, stamp)
		event.Video.DeleteTime = event.Video.UpdateTime
		return event, nil
	}
}

// UndeleteVideo restores a deleted video with the state it had. For one that is not deleted
// it returns Exists (AIP-164), and for a purged one NotFound.
func UndeleteVideo(expected int64, stamp Stamp) VideoDecision {
	return func(v Video) (*VideoEvent, error) {
		if v.Purged() {
			return nil, v.notFound()
		}
		if !v.Deleted() {
			return nil, problem.Errorf(problem.Exists, "video %q is not deleted", v.ID).Because(ReasonVideoNotDeleted)
		}
		if err := v.expect(expected); err != nil {
			return nil, err
		}
		v.DeleteTime = time.Time{}
		return v.next(VideoUndeleted, stamp), nil
	}
}

// expect returns a Conflict if the video has another version.
func (v Video) expect(version int64) error {
	if version != AnyVersion && version != v.Version {
		return problem.Errorf(problem.Conflict, "video %q was changed meanwhile: read it again", v.ID)
	}
	return nil
}

func (v Video) mayChange(expected int64) error {
	if v.Purged() {
		return v.notFound()
	}
	if v.Deleted() {
		return problem.Errorf(problem.Precondition, "video %q is deleted: undelete it first", v.ID).Because(ReasonVideoDeleted)
	}
	return v.expect(expected)
}

// next returns the event with the next version. Its time is never before the last update,
// even if the clocks of servers differ.
func (v Video) next(typ EventType, stamp Stamp) *VideoEvent {
	now := stamp.Time.Truncate(time.Millisecond)
	if now.Before(v.UpdateTime) {
		now = v.UpdateTime
	}
	v.Version++
	v.UpdateTime, v.UpdateUser = now, stamp.Caller
	if typ == VideoPublished {
		v.PublishTime = now
	}
	if typ == VideoUnpublished {
		v.PublishTime = time.Time{}
	}
	v.VideoDetails = v.owned()
	return &VideoEvent{ID: stamp.EventID, Type: typ, Video: v, OccurredAt: now, Caller: stamp.Caller, Causation: stamp.Causation}
}
