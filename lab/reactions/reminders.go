// Package reactions breaks everything around reactions and timers, which the videos of the service do not have: it runs a service
// whose videos have both.
package reactions

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
	option "example.com/videocatalog/options/reactions"
	"example.com/videocatalog/options/reactions/timers"
)

var reminders = names.VideoTopic.Subscription("reminders")

// The marks that reactions leave.
const (
	tallyTitle = "tally"   // of the videos that count others
	seenTag    = "seen"    // of a video whose creation was reacted to
	stop       = "stop"    // the description with which a client stops the timer of a video
	stoppedTag = "stopped" // of a video whose timer was cancelled
)

// Program returns the service. When a video was created, it gets a tag and a timer that publishes it, and one of four tallies
// counts it. When its description becomes stop before that, it gets another tag, and the timer is cancelled. Nothing of this
// checks whether it has happened before: a second time would show.
func Program() app.Program {
	reminded := option.Of{
		Subscriptions: []app.Subscription{{ID: reminders, Consumer: "reminders", Handlers: func(b app.Backend) consumer.Handlers {
			concerns := func(e domain.VideoEvent) []uuid.UUID { return []uuid.UUID{e.Video.ID, tallyOf(e.Video.ID)} }
			handler := option.Handler(event.DecodeVideo, clips{store.NewVideos(b.Commands, b.Wake)}, concerns, remindedBy)
			return consumer.Handlers{event.AggregateVideo: handler}
		}}},
		Timers: func(b app.Backend) option.Timers {
			return option.NewTimers(clips{store.NewVideos(b.Commands, b.Wake)}, func(v domain.Video, _ string, stamp domain.Stamp) (*fact, error) {
				return of(domain.PublishVideo(domain.AnyVersion, stamp)(v))
			})
		},
	}
	return app.Program{Parts: []app.Part{option.Part()}, Registrations: []app.Registration{{
		AggregateType: event.AggregateVideo,
		Services: func(b app.Backend) ([]port.Service, error) {
			return []port.Service{server.Videos(store.NewVideos(b.Commands, b.Wake))}, nil
		},
		Parts: map[string]any{option.Name: reminded},
	}}}
}

// fact is an event of a video, with timers.
type fact struct {
	domain.VideoEvent

	Timers map[string]time.Duration
}

// of returns a fact without timers.
func of(e *domain.VideoEvent, err error) (*fact, error) {
	if e == nil || err != nil {
		return nil, err
	}
	return &fact{VideoEvent: *e}, nil
}

// clips are videos with timers.
type clips struct{ *store.Videos }

// Decide implements option.Aggregates.
func (c clips) Decide(ctx context.Context, tx store.Tx, id uuid.UUID, before domain.Video, decide func(domain.Video) (*fact, error)) (domain.Video, bool, error) {
	var made *fact
	after, changed, err := c.Videos.Decide(ctx, tx, id, before, func(v domain.Video) (e *domain.VideoEvent, err error) {
		if made, err = decide(v); made == nil || err != nil {
			return nil, err
		}
		return &made.VideoEvent, nil
	})
	if changed && err == nil {
		err = timers.Set(ctx, tx, envelope.Message{ID: made.ID, AggregateType: event.AggregateVideo, AggregateID: id.String()}, made.Timers)
	}
	return after, changed, err
}

// remindedBy returns what an event causes for a video.
func remindedBy(v domain.Video, e domain.VideoEvent, stamp domain.Stamp) (*fact, error) {
	own := v.ID == e.Video.ID
	switch {
	case e.Video.Title == tallyTitle:
		return nil, nil
	case e.Type == domain.VideoCreated && own:
		return tagged(v, seenTag, remindAfter(v.ID), stamp)
	case e.Type == domain.VideoCreated && v.Version == 0:
		return of(domain.CreateVideo(tallyOf(e.Video.ID), domain.VideoDetails{Title: tallyTitle, Duration: time.Millisecond}, stamp))
	case e.Type == domain.VideoCreated:
		return of(domain.UpdateVideo([]domain.VideoField{domain.VideoFieldDuration}, domain.VideoDetails{Duration: v.Duration + time.Millisecond}, domain.AnyVersion, stamp)(v))
	case e.Type == domain.VideoUpdated && own && v.State == domain.VideoStateDraft && stops(e.Video.Description, e.ChangedFields):
		return tagged(v, stoppedTag, 0, stamp)
	}
	return nil, nil
}

// stops reports whether a client's update stops the timer.
func stops(description string, changed []string) bool {
	return description == stop && slices.Contains(changed, string(domain.VideoFieldDescription))
}

// tagged adds a tag to a video, and sets its timer; 0 cancels it.
func tagged(v domain.Video, tag string, after time.Duration, stamp domain.Stamp) (*fact, error) {
	e, err := of(domain.UpdateVideo([]domain.VideoField{domain.VideoFieldTags}, domain.VideoDetails{Tags: append(slices.Clone(v.Tags), tag)}, domain.AnyVersion, stamp)(v))
	if e != nil {
		e.Timers = map[string]time.Duration{"publish": after}
	}
	return e, err
}

// remindAfter is how long the timer of a video waits: up to two seconds.
func remindAfter(id uuid.UUID) time.Duration { return time.Duration(id[15])*8*time.Millisecond + 1 }

// tallyOf returns the id of the video that counts another one.
func tallyOf(id uuid.UUID) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, []byte{id[15] % 4}) }
