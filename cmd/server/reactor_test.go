package main

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/internal/timer"
)

// remind is a registration: a video that was created gets a tag by a reaction, and is
// published when a timer fires after that; 0: there is no timer.
func remind(broken bool, after time.Duration) app.Registration {
	videos := func(b app.Backend) *store.Videos { return store.NewVideos(b.Commands, b.Wake) }
	return app.Registration{
		AggregateType: event.AggregateVideo,
		Reactions: func(b app.Backend) []app.Subscription {
			reaction := domain.Reaction[domain.Event, domain.Video, domain.Event]{
				Concerns: func(e domain.Event) []uuid.UUID { return []uuid.UUID{e.Video.ID} },
				Decide: func(v domain.Video, e domain.Event, stamp domain.Stamp) (*domain.Event, error) {
					if e.Type != domain.VideoCreated {
						return nil, nil
					}
					if broken {
						return nil, errBroken
					}
					made, err := domain.Update([]domain.Field{domain.FieldTags}, domain.Details{Tags: []string{"seen"}}, domain.AnyVersion, stamp)(v)
					if made != nil && after > 0 {
						made.Timers = []domain.Timer{{Name: "publish", After: after}}
					}
					return made, err
				},
			}
			react := store.ReactVideos(videos(b), reaction, server.Stamp)
			return []app.Subscription{{ID: reminders, Consumer: "reminders", Handlers: consumer.Handlers{event.AggregateVideo: consumer.React(event.Types, event.Decode, react)}}}
		},
		Timers: func(b app.Backend) timer.Timers {
			return videos(b).Timers(func(v domain.Video, _ string, stamp domain.Stamp) (*domain.Event, error) {
				return domain.Publish(domain.AnyVersion, stamp)(v)
			}, server.Stamp)
		},
	}
}

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

// react runs the roles reactor and publisher in this process, for a service with one
// registration. It runs the role projector too, which has nothing to do, so that the query
// side is observed.
func (s *stack) react(t testing.TB, only app.Registration, extra ...string) *inProcess {
	t.Helper()
	client, err := s.pubsub.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	subscribe(t, client, reminders)
	return s.runInProcess(t, programOf(only), append(extra, "ROLES=reactor,publisher,projector")...)
}

// programOf returns a service with one registration.
func programOf(only app.Registration) app.Program {
	return app.Program{Registrations: func(*pgxpool.Pool) []app.Registration { return []app.Registration{only} }}
}

// inProcess is a server that runs in the process of the test.
type inProcess struct {
	process
	stop func()
}

// runInProcess serves until the test ends or stop is called.
func (s *stack) runInProcess(t testing.TB, program app.Program, extra ...string) *inProcess {
	t.Helper()
	p := &inProcess{process: process{eof: make(chan struct{})}}
	started := make(chan string, 1)
	log, written := io.Pipe()
	go p.read(log, started)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- program.Run(ctx, nil, s.environ(extra...), io.Discard, written)
		_ = written.Close() // it returns nil
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	select {
	case <-started:
	case err := <-done:
		done <- nil
		t.Fatalf("the server ended: %v", err)
	}
	return p
}

// createVideo makes a video with timers.
func createVideo(t testing.TB, videos *store.Videos, timers ...domain.Timer) uuid.UUID {
	t.Helper()
	stamp, err := server.Stamp()
	if err != nil {
		t.Fatal(err)
	}
	created, err := domain.Create(uuid.Must(uuid.NewV7()), domain.Details{Title: "Ran"}, stamp)
	if err != nil {
		t.Fatal(err)
	}
	created.Timers = timers
	if _, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, created); err != nil {
		t.Fatal(err)
	}
	return created.Video.ID
}

// A command leads to a reaction, and the reaction to a timer, through the topic and with the
// chain of causes. Each happens once.
func TestReactor(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.react(t, reminded(app.Registration{AggregateType: event.AggregateVideo}))
	id := createVideo(t, store.NewVideos(s.pool, nil))
	eventually(t, 30*time.Second, "the timer fires", func() bool {
		v, err := store.NewVideos(s.pool, nil).GetVideo(t.Context(), id)
		return err == nil && v.State == domain.Published && slices.Equal(v.Tags, []string{seenTag}) && v.Version == 3
	})
	const chain = `SELECT count(*) FROM video_catalog.outbox first, video_catalog.outbox second, video_catalog.outbox third
		WHERE first.version = 1 AND second.version = 2 AND third.version = 3 AND first.causation_id IS NULL
		AND second.causation_id = first.id AND second.correlation_id = first.id AND third.causation_id = second.id AND third.correlation_id = first.id`
	if n := s.count(t, chain); n != 1 {
		t.Error("the events of command, reaction and timer are no chain of causes")
	}
}

// An event that cannot be handled is in quarantine, on the query side, and in the metrics.
// Another build reacts to it.
func TestReactorQuarantines(t *testing.T) {
	t.Parallel()
	s, queries := newStack(t), storetest.Pool(t, 2)
	apart := "READ_DATABASE_URL=" + queries.Config().ConnString()
	p := s.react(t, remind(true, 0), apart, "TELEMETRY_ADDR=127.0.0.1:0")
	createVideo(t, store.NewVideos(s.pool, nil))
	eventually(t, 30*time.Second, "the event is in quarantine", func() bool {
		var n int
		err := queries.QueryRow(t.Context(), "SELECT count(*) FROM video_catalog_read.quarantine WHERE consumer = 'reminders' AND reason LIKE 'refused 5 times%'").Scan(&n)
		return err == nil && n == 1
	})
	eventually(t, 30*time.Second, "the metrics have it, and the timers", func() bool {
		_, metrics := get(t, "http://"+p.private(t)+"/metrics")
		return regexp.MustCompile(`(?m)^consumer_quarantine(\{.*\})? 1$`).MatchString(metrics) && strings.Contains(metrics, `timer_waiting{aggregate_type="video"`)
	})
	if n := s.count(t, "SELECT count(*) FROM video_catalog.inbox"); n != 0 {
		t.Errorf("the inbox has %d events, want none: the event did not take effect", n)
	}
	p.stop()
	var out strings.Builder
	if err := programOf(remind(false, time.Millisecond)).Run(t.Context(), []string{"quarantine", "replay", "--all", "--reason", "mended"}, s.environ(apart), &out, io.Discard); err != nil {
		t.Fatalf("quarantine replay = %q, %v", &out, err)
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog.outbox WHERE version = 2 AND causation_id IS NOT NULL"); n != 1 {
		t.Errorf("%d events of the reaction, want 1", n)
	}
}

// The inbox of the command side forgets old events of the service's own consumers, however
// many there are.
func TestReactorForgetsOldEvents(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	const insert = `INSERT INTO video_catalog.inbox (consumer, event_id, received_at)
		SELECT $1, (left(video_catalog.uuid7_floor(now() - $3::interval)::text, 14) || '7' || substr(gen_random_uuid()::text, 16))::uuid, now() - $3::interval
		FROM generate_series(1, $2::int)`
	for _, rows := range []struct {
		consumer string
		n        int
		age      time.Duration
	}{{"reminders", app.PruneRows + 1, 40 * 24 * time.Hour}, {"reminders", 2, 20 * 24 * time.Hour}, {"another", 3, 40 * 24 * time.Hour}} {
		if _, err := s.pool.Exec(t.Context(), insert, rows.consumer, rows.n, rows.age); err != nil {
			t.Fatal(err)
		}
	}
	s.react(t, remind(false, 0))
	eventually(t, 30*time.Second, "the old events are forgotten", func() bool { return s.count(t, "SELECT count(*) FROM video_catalog.inbox") <= 5 })
	if n := s.count(t, "SELECT count(*) FROM video_catalog.inbox"); n != 5 {
		t.Errorf("%d events are left, want the 2 that are not old and the 3 of another consumer", n)
	}
}

// Only the role reactor reacts and fires timers. Both wake the publisher.
func TestReactorIsARole(t *testing.T) {
	t.Parallel()
	for roles, want := range map[string]int64{"publisher": 0, "reactor,publisher": 2} {
		var woken atomic.Int64
		counted, reminds := remind(false, 0), remind(false, 0)
		count := func(b app.Backend) app.Backend {
			if b.Wake != nil {
				woken.Add(1)
			}
			return b
		}
		counted.Reactions = func(b app.Backend) []app.Subscription { return reminds.Reactions(count(b)) }
		counted.Timers = func(b app.Backend) timer.Timers { return reminds.Timers(count(b)) }
		newStack(t).runInProcess(t, programOf(counted), "ROLES="+roles).stop()
		if got := woken.Load(); got != want {
			t.Errorf("ROLES=%s: %d of reactions and timers wake the publisher, want %d", roles, got, want)
		}
	}
}
