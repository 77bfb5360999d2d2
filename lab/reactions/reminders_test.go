package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/timer"
)

// This file is compiled into the tests, and by buildReminded into a program: the service with a reaction and a timer.

var reminders = names.VideoTopic.Subscription("reminders")

// The marks that reactions leave.
const (
	tallyTitle = "tally"   // of the videos that count others
	seenTag    = "seen"    // of a video whose creation was reacted to
	stop       = "stop"    // the description with which a client stops the timer of a video
	stoppedTag = "stopped" // of a video whose timer was cancelled
	broken     = "broken"  // the description of a video whose timer fails
)

// errBroken is why a reaction or a timer cannot be handled.
var errBroken = errors.New("broken on purpose")

// reminded adds to the registration of videos. When a video was created, it gets a tag and a timer that publishes it, and one of
// four tallies counts it. When its description becomes stop before that, it gets another tag, and the timer is cancelled. Nothing
// of this checks whether it has happened before: a second time would show.
func reminded(r app.Registration) app.Registration {
	r.Reactions = func(b app.Backend) []app.Subscription {
		react := store.ReactVideos(store.NewVideos(b.Commands, b.Wake), domain.Reaction[domain.Event, domain.Video, domain.Event]{
			Concerns: func(e domain.Event) []uuid.UUID { return []uuid.UUID{e.Video.ID, tallyOf(e.Video.ID)} },
			Decide:   remindedBy,
		}, server.Stamp)
		if os.Getenv("REMINDERS_FORGET") != "" { // a mistake on purpose: the inbox finds no event again
			remembered := react
			react = func(ctx context.Context, _ string, received []envelope.Received[domain.Event]) ([]envelope.Outcome, error) {
				return remembered(ctx, uuid.NewString(), received)
			}
		}
		return []app.Subscription{{ID: reminders, Consumer: "reminders", Handlers: consumer.Handlers{event.AggregateVideo: consumer.React(event.Types, event.Decode, react)}}}
	}
	r.Timers = func(b app.Backend) timer.Timers {
		return store.NewVideos(b.Commands, b.Wake).Timers(func(v domain.Video, _ string, stamp domain.Stamp) (*domain.Event, error) {
			if v.Description == broken {
				return nil, errBroken
			}
			return domain.Publish(domain.AnyVersion, stamp)(v)
		}, server.Stamp)
	}
	return r
}

// remindedBy returns what an event causes for a video.
func remindedBy(v domain.Video, e domain.Event, stamp domain.Stamp) (*domain.Event, error) {
	own := v.ID == e.Video.ID
	switch {
	case e.Video.Title == tallyTitle:
		return nil, nil
	case e.Type == domain.VideoCreated && own:
		return tagged(v, seenTag, remindAfter(v.ID), stamp)
	case e.Type == domain.VideoCreated && v.Version == 0:
		return domain.Create(tallyOf(e.Video.ID), domain.Details{Title: tallyTitle, Duration: time.Millisecond}, stamp)
	case e.Type == domain.VideoCreated:
		return domain.Update([]domain.Field{domain.FieldDuration}, domain.Details{Duration: v.Duration + time.Millisecond}, domain.AnyVersion, stamp)(v)
	case e.Type == domain.VideoUpdated && own && v.State == domain.Draft && stops(e.Video.Description, e.ChangedFields):
		return tagged(v, stoppedTag, 0, stamp)
	}
	return nil, nil
}

// stops reports whether a client's update stops the timer.
func stops(description string, changed []string) bool {
	return description == stop && slices.Contains(changed, string(domain.FieldDescription))
}

// tagged adds a tag to a video, and sets its timer; 0 cancels it.
func tagged(v domain.Video, tag string, after time.Duration, stamp domain.Stamp) (*domain.Event, error) {
	e, err := domain.Update([]domain.Field{domain.FieldTags}, domain.Details{Tags: append(slices.Clone(v.Tags), tag)}, domain.AnyVersion, stamp)(v)
	if e != nil {
		e.Timers = []domain.Timer{{Name: "publish", After: after}}
	}
	return e, err
}

// remindAfter is how long the timer of a video waits: up to two seconds.
func remindAfter(id uuid.UUID) time.Duration { return time.Duration(id[15])*8*time.Millisecond + 1 }

// tallyOf returns the id of the video that counts another one.
func tallyOf(id uuid.UUID) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, []byte{id[15] % 4}) }
