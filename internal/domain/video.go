package domain

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
)

// State is the state of a video. Deleted is not a state: a deleted video keeps
// the state it had.
type State string

// The states, with their values in the database.
const (
	Draft     State = "draft"
	Published State = "published"
)

// Video is the aggregate: one transaction changes one video.
type Video struct {
	ID uuid.UUID
	Details
	State State
	// Version is 1 after creation, and grows by 1 with every event.
	Version int64
	// Times are in UTC and whole milliseconds, the precision of events.
	CreateTime  time.Time
	UpdateTime  time.Time
	PublishTime time.Time // zero in a draft
	DeleteTime  time.Time // zero if it is not deleted
	PurgeTime   time.Time // zero if it is not purged
}

// Deleted reports whether the video is deleted.
func (v Video) Deleted() bool { return !v.DeleteTime.IsZero() }

// Purged reports whether the video is purged. It is deleted then, too, and has no
// Details.
func (v Video) Purged() bool { return !v.PurgeTime.IsZero() }

// Details are the fields that the owner of a video sets.
type Details struct {
	Title        string
	Description  string
	ReleaseYear  int32         // 0: unknown
	Duration     time.Duration // whole milliseconds; 0: unknown
	LanguageCode string        // BCP 47; empty: unknown
	Tags         []string
}

// Field is a field of Details, by its name in the API.
type Field string

// The fields of Details, in the order of the API.
const (
	FieldTitle        Field = "title"
	FieldDescription  Field = "description"
	FieldReleaseYear  Field = "release_year"
	FieldDuration     Field = "duration"
	FieldLanguageCode Field = "language_code"
	FieldTags         Field = "tags"
)

// AllFields returns the fields of Details, in the order of the API.
func AllFields() []Field {
	return []Field{FieldTitle, FieldDescription, FieldReleaseYear, FieldDuration, FieldLanguageCode, FieldTags}
}

// with returns d with one field of other, and whether its value changed.
func (d Details) with(field Field, other Details) (Details, bool) {
	before := d
	switch field {
	case FieldTitle:
		d.Title = other.Title
		return d, d.Title != before.Title
	case FieldDescription:
		d.Description = other.Description
		return d, d.Description != before.Description
	case FieldReleaseYear:
		d.ReleaseYear = other.ReleaseYear
		return d, d.ReleaseYear != before.ReleaseYear
	case FieldDuration:
		d.Duration = other.Duration.Truncate(time.Millisecond)
		return d, d.Duration != before.Duration
	case FieldLanguageCode:
		d.LanguageCode = other.LanguageCode
		return d, d.LanguageCode != before.LanguageCode
	case FieldTags:
		d.Tags = other.Tags
		return d, !slices.Equal(d.Tags, before.Tags)
	}
	return d, false
}

func (d Details) validate() error {
	if blank(d.Title) {
		return problem.InvalidField("video.title", "must not be empty: at least one character must be visible")
	}
	if i := slices.IndexFunc(d.Tags, blank); i >= 0 {
		return problem.InvalidField(fmt.Sprintf("video.tags[%d]", i), "must not be empty: at least one character must be visible")
	}
	return nil
}

// Decision is a command with its arguments. It returns the event that the
// command causes for a video, or nil if the command changes nothing.
type Decision func(Video) (*Event, error)

// Create returns the first event of a new video, which is a draft.
func Create(id uuid.UUID, details Details, stamp Stamp) (*Event, error) {
	if err := details.validate(); err != nil {
		return nil, err
	}
	details.Duration = details.Duration.Truncate(time.Millisecond)
	v := Video{ID: id, Details: details, State: Draft, CreateTime: stamp.Time.Truncate(time.Millisecond)}
	return v.next(VideoCreated, stamp), nil
}

// Update sets some fields. It causes no event if every field already has its
// new value.
func Update(fields []Field, details Details, expected int64, stamp Stamp) Decision {
	return func(v Video) (*Event, error) {
		if err := v.mayChange(expected); err != nil {
			return nil, err
		}
		var changed []string
		for _, field := range AllFields() {
			if !slices.Contains(fields, field) {
				continue
			}
			next, differs := v.with(field, details)
			if differs {
				v.Details = next
				changed = append(changed, string(field))
			}
		}
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

// Publish adds a draft to the catalog. It causes no event if the video is
// published.
func Publish(expected int64, stamp Stamp) Decision {
	return func(v Video) (*Event, error) {
		if err := v.mayChange(expected); err != nil {
			return nil, err
		}
		if v.State == Published {
			return nil, nil
		}
		v.State = Published
		event := v.next(VideoPublished, stamp)
		event.Video.PublishTime = event.Video.UpdateTime
		return event, nil
	}
}

// Unpublish turns a published video into a draft. It causes no event if it is a
// draft.
func Unpublish(expected int64, stamp Stamp) Decision {
	return func(v Video) (*Event, error) {
		if err := v.mayChange(expected); err != nil {
			return nil, err
		}
		if v.State == Draft {
			return nil, nil
		}
		v.State = Draft
		v.PublishTime = time.Time{}
		return v.next(VideoUnpublished, stamp), nil
	}
}

// Delete deletes a video. For a deleted video it returns NotFound, or no event
// if allowMissing is set (AIP-135).
func Delete(allowMissing bool, expected int64, stamp Stamp) Decision {
	return func(v Video) (*Event, error) {
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

// Undelete restores a deleted video with the state it had. For a video that is
// not deleted it returns Exists (AIP-164), and for a purged one NotFound.
func Undelete(expected int64, stamp Stamp) Decision {
	return func(v Video) (*Event, error) {
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

// Purge removes the content of a deleted video for good. What is left is a
// tombstone: the id, the version and times. For a video that is not deleted it
// returns Precondition, so one mistaken call cannot destroy what is in use. It
// causes no event if the video is purged, whatever version is expected.
func Purge(expected int64, stamp Stamp) Decision {
	return func(v Video) (*Event, error) {
		if v.Purged() {
			return nil, nil
		}
		if !v.Deleted() {
			return nil, problem.Errorf(problem.Precondition, "video %q is not deleted: delete it first", v.ID).Because(ReasonPurgeNeedsDeletion)
		}
		if err := v.expect(expected); err != nil {
			return nil, err
		}
		tombstone := Video{ID: v.ID, State: Draft, Version: v.Version, CreateTime: v.CreateTime, UpdateTime: v.UpdateTime, DeleteTime: v.DeleteTime}
		event := tombstone.next(VideoPurged, stamp)
		event.Video.PurgeTime = event.Video.UpdateTime
		return event, nil
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

// notFound is the answer about a purged video.
func (v Video) notFound() error {
	return problem.Errorf(problem.NotFound, "video %q does not exist", v.ID)
}

// next returns the event with the next version of v. Its time is never before
// the last update, even if the clocks of servers differ.
func (v Video) next(typ EventType, stamp Stamp) *Event {
	now := stamp.Time.Truncate(time.Millisecond)
	if now.Before(v.UpdateTime) {
		now = v.UpdateTime
	}
	v.Version++
	v.UpdateTime = now
	v.Tags = slices.Clone(v.Tags) // events are immutable, so they must not share the slice
	return &Event{ID: stamp.EventID, Type: typ, Video: v, OccurredAt: now, Caller: stamp.Caller, Cause: stamp.Cause}
}
