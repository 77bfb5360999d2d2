package domain

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
)

// State is where a video is in its life. Being deleted is no state: a deleted
// video keeps the state it had.
type State string

// The states, as they are stored.
const (
	Draft     State = "draft"
	Published State = "published"
)

// Video is the aggregate: everything that one transaction changes together.
type Video struct {
	ID uuid.UUID
	Details
	State State
	// Version is 1 when created and +1 with every event.
	Version int64
	// Times are UTC in whole milliseconds, which is what events carry.
	CreateTime  time.Time
	UpdateTime  time.Time
	PublishTime time.Time // zero while it is a draft
	DeleteTime  time.Time // zero while it is not deleted
}

// Deleted tells whether the video is deleted.
func (v Video) Deleted() bool { return !v.DeleteTime.IsZero() }

// Details is what its owner says about a video.
type Details struct {
	Title        string
	Description  string
	ReleaseYear  int32         // 0: not known
	Duration     time.Duration // whole milliseconds; 0: not known
	LanguageCode string        // BCP-47; empty: not known
	Tags         []string
}

// Field names one field of Details, by its name in the API.
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

// AllFields are the fields of Details, in the order of the API.
func AllFields() []Field {
	return []Field{FieldTitle, FieldDescription, FieldReleaseYear, FieldDuration, FieldLanguageCode, FieldTags}
}

// with returns d with one field taken from other, and whether that changed it.
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
		return InvalidField("video.title", "must not be empty: at least one character must be visible")
	}
	if i := slices.IndexFunc(d.Tags, blank); i >= 0 {
		return InvalidField(fmt.Sprintf("video.tags[%d]", i), "must not be empty: at least one character must be visible")
	}
	return nil
}

// blank reports whether nobody could see the text.
func blank(text string) bool { return !strings.ContainsFunc(text, visible) }

// visible reports whether a character shows by itself. Unicode calls some letters
// and marks ignorable, such as the Hangul filler; the blank Braille pattern is a symbol.
func visible(r rune) bool {
	return unicode.IsPrint(r) && r != ' ' && r != '\u2800' &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// Stamp is what a decision needs from the world: the id that its event will
// have, a UUIDv7, and the time it happens, UTC.
type Stamp struct {
	EventID uuid.UUID
	Time    time.Time
}

// Decision is a command with its arguments. Given a video it returns the event
// that the command makes of it; nil when it changes nothing.
type Decision func(Video) (*Event, error)

// AnyVersion as the expected version of a command means: whatever it is.
const AnyVersion int64 = 0

// Create decides on the first event of a new video, a draft.
func Create(id uuid.UUID, details Details, stamp Stamp) (*Event, error) {
	if err := details.validate(); err != nil {
		return nil, err
	}
	details.Duration = details.Duration.Truncate(time.Millisecond)
	v := Video{ID: id, Details: details, State: Draft, CreateTime: stamp.Time.Truncate(time.Millisecond)}
	return v.next(VideoCreated, stamp), nil
}

// Update changes some fields. It makes no event when all of them have their
// new values already.
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

// Publish puts a draft into the catalog.
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

// Unpublish makes a published video a draft again.
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

// Delete deletes a video. Deleting a deleted one is NotFound, or nothing when
// allowMissing is set (AIP-135).
func Delete(allowMissing bool, expected int64, stamp Stamp) Decision {
	return func(v Video) (*Event, error) {
		if v.Deleted() {
			if allowMissing {
				return nil, nil
			}
			return nil, Errorf(NotFound, "video %q is deleted already", v.ID)
		}
		if err := v.expect(expected); err != nil {
			return nil, err
		}
		event := v.next(VideoDeleted, stamp)
		event.Video.DeleteTime = event.Video.UpdateTime
		return event, nil
	}
}

// Undelete brings a deleted video back in the state it had. One that is not
// deleted Exists (AIP-164).
func Undelete(expected int64, stamp Stamp) Decision {
	return func(v Video) (*Event, error) {
		if !v.Deleted() {
			return nil, Errorf(Exists, "video %q is not deleted", v.ID).Because(ReasonVideoNotDeleted)
		}
		if err := v.expect(expected); err != nil {
			return nil, err
		}
		v.DeleteTime = time.Time{}
		return v.next(VideoUndeleted, stamp), nil
	}
}

// expect is a Conflict when the caller counted on another version.
func (v Video) expect(version int64) error {
	if version != AnyVersion && version != v.Version {
		return Errorf(Conflict, "video %q was changed meanwhile: read it again", v.ID)
	}
	return nil
}

func (v Video) mayChange(expected int64) error {
	if v.Deleted() {
		return Errorf(Precondition, "video %q is deleted: undelete it first", v.ID).Because(ReasonVideoDeleted)
	}
	return v.expect(expected)
}

// next makes the event by which v becomes the next version. Time never runs
// backwards for a video, whatever the clocks of the servers do.
func (v Video) next(typ EventType, stamp Stamp) *Event {
	now := stamp.Time.Truncate(time.Millisecond)
	if now.Before(v.UpdateTime) {
		now = v.UpdateTime
	}
	v.Version++
	v.UpdateTime = now
	v.Tags = slices.Clone(v.Tags) // an event is never edited, so nobody else may hold them
	return &Event{ID: stamp.EventID, Type: typ, Video: v, OccurredAt: now}
}
