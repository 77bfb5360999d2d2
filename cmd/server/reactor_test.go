package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/telemetry"
	"example.com/videocatalog/internal/timer"
)

// remind is a registration: a video that was created gets a tag by a reaction, and is
// published when a timer fires after that; 0: there is no timer.
func remind(broken bool, after time.Duration) registration {
	videos := func(b backend) *store.Videos { return store.NewVideos(b.commands, b.wake) }
	return registration{
		aggregateType: event.AggregateVideo,
		reactions: func(b backend) []subscription {
			reaction := domain.Reaction[domain.Event, domain.Video, domain.Event]{
				Concerns: func(e domain.Event) []uuid.UUID { return []uuid.UUID{e.Video.ID} },
				Decide: func(v domain.Video, e domain.Event, stamp domain.Stamp) (*domain.Event, error) {
					if e.Type != domain.VideoCreated {
						return nil, nil
					}
					if broken {
						return nil, errUsage
					}
					made, err := domain.Update([]domain.Field{domain.FieldTags}, domain.Details{Tags: []string{"seen"}}, domain.AnyVersion, stamp)(v)
					if made != nil && after > 0 {
						made.Timers = []domain.Timer{{Name: "publish", After: after}}
					}
					return made, err
				},
			}
			react := store.ReactVideos(videos(b), reaction, server.Stamp)
			return []subscription{{id: reminders, consumer: "reminders", handlers: consumer.Handlers{event.AggregateVideo: consumer.React(event.Types, event.Decode, react)}}}
		},
		timers: func(b backend) timer.Timers {
			return videos(b).Timers(func(v domain.Video, _ string, stamp domain.Stamp) (*domain.Event, error) {
				return domain.Publish(domain.AnyVersion, stamp)(v)
			}, server.Stamp)
		},
	}
}

var reminders = names.TopicOf(event.AggregateVideo).Subscription("reminders")

// subscribe creates a subscription to the topic of the videos.
func subscribe(t testing.TB, client *pubsub.Client, name string) {
	t.Helper()
	if _, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name:                  "projects/" + project + "/subscriptions/" + name,
		Topic:                 "projects/" + project + "/topics/" + names.TopicOf(event.AggregateVideo).Name,
		EnableMessageOrdering: true,
	}); err != nil {
		t.Fatal(err)
	}
}

// react runs the roles reactor and publisher in this process, with a registration more.
func (s *stack) react(t testing.TB, more registration) (i *instance, stop func()) {
	t.Helper()
	client, err := s.pubsub.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	subscribe(t, client, reminders)
	cfg, err := readConfig("serve", s.environ("ROLES=reactor,publisher"))
	if err != nil {
		t.Fatal(err)
	}
	i = &instance{cfg: cfg, log: slog.New(slog.NewTextHandler(t.Output(), nil)), tel: &telemetry.Telemetry{}, purged: make(chan struct{}, 1), client: client}
	if i.database, err = openDatabase(t.Context(), cfg, sides{commands: true, queries: true}, 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := i.startStores(t.Context()); err != nil {
		t.Fatal(err)
	}
	i.registered = append(i.registered, more)
	for _, start := range []func(context.Context) error{i.startPublisher, i.startReactor} {
		if err := start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, len(i.loops))
	for _, loop := range i.loops {
		go func() { done <- loop(ctx) }()
	}
	stop = sync.OnceFunc(func() {
		cancel()
		for range i.loops {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		i.database.close()
	})
	t.Cleanup(stop)
	return i, stop
}

// A command leads to a reaction, and the reaction to a timer, through the topic and with the
// chain of causes. Each happens once.
func TestReactor(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.react(t, remind(false, time.Millisecond))
	p := s.start(t, "ROLES=api")
	v, err := p.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the timer fires", func() bool {
		got, err := p.videos.GetVideo(t.Context(), &videov1.GetVideoRequest{Name: v.GetName()})
		return err == nil && got.GetState() == videov1.Video_STATE_PUBLISHED && slices.Equal(got.GetTags(), []string{"seen"}) && got.GetVersion() == 3
	})
	const chain = `SELECT count(*) FROM video_catalog.outbox first, video_catalog.outbox second, video_catalog.outbox third
		WHERE first.version = 1 AND second.version = 2 AND third.version = 3 AND first.causation_id IS NULL
		AND second.causation_id = first.id AND second.correlation_id = first.id AND third.causation_id = second.id AND third.correlation_id = first.id`
	if n := s.count(t, chain); n != 1 {
		t.Error("the events of command, reaction and timer are no chain of causes")
	}
}

// An event that cannot be handled is in quarantine, and another build reacts to it.
func TestReactorQuarantines(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, stop := s.react(t, remind(true, 0))
	p := s.start(t, "ROLES=api")
	if _, err := p.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the event is in quarantine", func() bool {
		return s.count(t, "SELECT count(*) FROM video_catalog_read.quarantine WHERE consumer = 'reminders' AND reason LIKE 'refused 5 times%'") == 1
	})
	if n := s.count(t, "SELECT count(*) FROM video_catalog.inbox"); n != 0 {
		t.Errorf("the inbox has %d events, want none: the event did not take effect", n)
	}
	stop()
	inbox := store.NewInbox(s.pool)
	all := replayed([]registration{remind(false, time.Millisecond)}, s.pool)
	messages, err := inbox.ListQuarantine(t.Context(), admin.Filter{}, 0, 10)
	if err != nil || len(messages) != 1 {
		t.Fatalf("ListQuarantine() = %v, %v, want one", messages, err)
	}
	if messages[0].Payload, err = inbox.QuarantinedPayload(t.Context(), messages[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := replayer(all)(t.Context(), messages[0]); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog.outbox WHERE version = 2 AND causation_id IS NOT NULL"); n != 1 {
		t.Errorf("%d events of the reaction, want 1", n)
	}
}
