package reactions

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
)

const project = "test-project"

var errBroken = errors.New("broken on purpose")

// program is a service in which a video that was created gets a tag by a reaction, and is
// published by a timer soon after that.
func program(isBroken bool) app.Program {
	of := Of{
		Subscriptions: []app.Subscription{{ID: names.VideoTopic.Subscription("reminders"), Consumer: "reminders", Handlers: func(b app.Backend) consumer.Handlers {
			decide := func(v domain.Video, e domain.VideoEvent, stamp domain.Stamp) (*fact, error) {
				switch {
				case e.Type != domain.VideoCreated:
					return nil, nil
				case isBroken:
					return nil, errBroken
				}
				made, err := tagged(v, "seen", stamp)
				if made != nil {
					made.Timers = after{"publish": now}
				}
				return made, err
			}
			concerns := func(e domain.VideoEvent) []uuid.UUID { return []uuid.UUID{e.Video.ID} }
			return consumer.Handlers{event.AggregateVideo: Handler(event.DecodeVideo, newClips(b.CommandPool, b.Wake), concerns, decide)}
		}}},
		Timers: func(b app.Backend) Timers {
			return NewTimers(newClips(b.CommandPool, b.Wake), func(v domain.Video, _ string, stamp domain.Stamp) (*fact, error) {
				return of(domain.PublishVideo(domain.AnyVersion, stamp)(v))
			})
		},
	}
	return app.Program{Options: []app.Option{Option()}, Registrations: []app.Registration{{AggregateType: event.AggregateVideo, Options: map[string]any{Name: of}}}}
}

// service is a running program, with its database and its Pub/Sub.
type service struct {
	pool    *pgxpool.Pool
	environ []string
	stop    func()

	mu      sync.Mutex
	private string // guarded by mu: the address of the private port
}

// Write finds the private port in the log.
func (s *service) Write(line []byte) (int, error) {
	var of struct{ Message, Addr string }
	if json.Unmarshal(line, &of) == nil && of.Message == "telemetry: private port open" {
		s.mu.Lock()
		s.private = of.Addr
		s.mu.Unlock()
	}
	return len(line), nil
}

// serve runs a program until the test ends or stop is called.
func serve(t *testing.T, pool *pgxpool.Pool, program app.Program, environ ...string) *service {
	t.Helper()
	broker, client := localtopics.Start(t, project, localbroker.Resources{})
	topic := names.VideoTopic
	if _, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name:  "projects/" + project + "/subscriptions/" + topic.Subscription("reminders"),
		Topic: "projects/" + project + "/topics/" + topic.Name, EnableMessageOrdering: true,
	}); err != nil {
		t.Fatal(err)
	}
	s := &service{pool: pool, environ: append([]string{
		"PORT=0", "AUTH=off", "DATABASE_URL=" + pool.Config().ConnString(), "PUBSUB_PROJECT=" + project, "PUBSUB_EMULATOR_HOST=" + broker.Addr(),
		"ROLES=publisher,reactor", "TELEMETRY_ADDR=127.0.0.1:0",
	}, environ...)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- program.Run(ctx, nil, s.environ, io.Discard, s) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// metrics returns the metrics of the process; empty until it has any.
func (s *service) metrics(t *testing.T) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.private+"/metrics", http.NoBody)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return string(text)
}

// A command leads to a reaction, and the reaction to a timer, through the topic and with the
// chain of causes. Each happens once.
func TestReactor(t *testing.T) {
	t.Parallel()
	s := serve(t, pgtest.Pool(t, 4), program(false))
	videos := newClips(s.pool, nil)
	id := newClip(t, videos)
	pgtest.Eventually(t, 30*time.Second, "the timer fires", func() bool {
		v, err := videos.GetVideo(t.Context(), id)
		return err == nil && v.State == domain.VideoStatePublished && slices.Equal(v.Tags, []string{"seen"}) && v.Version == 3
	})
	const chain = `SELECT count(*) FROM video_catalog.outbox first, video_catalog.outbox second, video_catalog.outbox third
		WHERE first.version = 1 AND second.version = 2 AND third.version = 3 AND first.causation_id IS NULL
		AND second.causation_id = first.id AND second.correlation_id = first.id AND third.causation_id = second.id AND third.correlation_id = first.id`
	pgtest.WantCount(t, s.pool, 1, "chains of causes of command, reaction and timer", chain)
}

// An event that cannot be handled is in quarantine, on the query side, and in the metrics.
// Another build reacts to it.
func TestReactorQuarantines(t *testing.T) {
	t.Parallel()
	pool, queries := pgtest.Pool(t, 4), pgtest.Pool(t, 2)
	s := serve(t, pool, program(true), "READ_DATABASE_URL="+queries.Config().ConnString())
	newClip(t, newClips(pool, nil))
	pgtest.Eventually(t, 30*time.Second, "the event is in quarantine", func() bool {
		return pgtest.Count(t, queries, "SELECT count(*) FROM video_catalog_read.quarantine WHERE consumer = 'reminders' AND reason LIKE 'refused 5 times%'") == 1
	})
	pgtest.Eventually(t, 30*time.Second, "the metrics have it, and the timers", func() bool {
		metrics := s.metrics(t)
		return regexp.MustCompile(`(?m)^consumer_quarantine(\{.*\})? 1$`).MatchString(metrics) && strings.Contains(metrics, `timer_waiting{aggregate_type="video"`)
	})
	pgtest.WantCount(t, pool, 0, "events in the inbox: the event did not take effect", "SELECT count(*) FROM video_catalog.inbox")
	s.stop()
	var out strings.Builder
	if err := program(false).Run(t.Context(), []string{"retry", "--all", "--why", "mended"}, s.environ, &out, io.Discard); err != nil {
		t.Fatalf("retry = %q, %v", &out, err)
	}
	pgtest.WantCount(t, pool, 1, "events of the reaction", "SELECT count(*) FROM video_catalog.outbox WHERE version = 2 AND causation_id IS NOT NULL")
}

// The inbox of the command side forgets old events of the service's own consumers, however
// many there are.
func TestReactorForgetsOldEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 4)
	const insert = `INSERT INTO video_catalog.inbox (consumer, event_id, received_at)
		SELECT $1, (left(video_catalog.uuid7_floor(now() - $3::interval)::text, 14) || '7' || substr(gen_random_uuid()::text, 16))::uuid, now() - $3::interval
		FROM generate_series(1, $2::int)`
	for _, rows := range []struct {
		consumer string
		n        int
		age      time.Duration
	}{{"reminders", app.PruneRows + 1, 40 * 24 * time.Hour}, {"reminders", 2, 20 * 24 * time.Hour}, {"another", 3, 40 * 24 * time.Hour}} {
		pgtest.Execute(t, pool, insert, rows.consumer, rows.n, rows.age)
	}
	serve(t, pool, program(false))
	pgtest.Eventually(t, 30*time.Second, "the old events are forgotten", func() bool { return pgtest.Count(t, pool, "SELECT count(*) FROM video_catalog.inbox") <= 5 })
	pgtest.WantCount(t, pool, 5, "events that are left: the 2 that are not old, and the 3 of another consumer", "SELECT count(*) FROM video_catalog.inbox")
}
