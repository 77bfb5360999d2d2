package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

var must = pgtest.Must

const project = "test-project"

// service is a service of videos with this option: a database, and a broker with its topic and its
// subscription.
type service struct {
	*testing.T

	pool         *pgxpool.Pool
	broker       *localbroker.Server
	videos       *store.Videos
	catalog      *store.Catalog
	subscription string
}

func newService(t *testing.T) *service {
	t.Helper()
	broker, _ := localtopics.Start(t, project, localbroker.Resources{})
	id := names.VideoTopic.Subscription("catalog")
	pool := pgtest.Pool(t, 8)
	return &service{T: t, pool: pool, broker: broker, videos: store.NewVideos(pool, nil), catalog: store.NewCatalog(pool), subscription: id}
}

// run runs a command, which ends with ctx at the latest, and returns its output.
func (s *service) run(ctx context.Context, args ...string) (stdout string, err error) {
	program := app.Program{Options: []app.Option{Option()}, Registrations: []app.Registration{{AggregateType: event.AggregateVideo, Subscriptions: []app.Subscription{{
		ID: s.subscription, Consumer: "catalog",
		Handlers: func(b app.Backend) consumer.Handlers {
			return consumer.Handlers{event.AggregateVideo: consumer.Handle(event.DecodeVideo, store.NewCatalog(b.QueryPool).Project)}
		},
	}}}}}
	var out bytes.Buffer
	err = program.Run(ctx, args, []string{
		"PORT=0", "AUTH=off", "DATABASE_URL=" + s.pool.Config().ConnString(), "PUBSUB_PROJECT=" + project, "PUBSUB_EMULATOR_HOST=" + s.broker.Addr(),
		"ROLES=publisher,projector",
	}, &out, s.Output())
	return out.String(), err
}

// serve publishes and projects until the test ends, or stop is called.
func (s *service) serve() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.run(ctx, "serve")
		ended <- err
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("serve = %v", err)
		}
	})
	s.Cleanup(stop)
	return stop
}

// create creates videos of two versions.
func (s *service) create(n int) (ids []uuid.UUID) {
	s.Helper()
	for i := range n {
		e, err := domain.CreateVideo(uuid.Must(uuid.NewV7()), domain.VideoDetails{Title: fmt.Sprint("Ran ", i)}, stamp())
		if err == nil {
			_, err = s.videos.CreateVideo(s.Context(), uuid.Nil, nil, e)
		}
		must(s, err)
		s.change(e.Video.ID, domain.PublishVideo(domain.AnyVersion, stamp()))
		ids = append(ids, e.Video.ID)
	}
	return ids
}

func stamp() domain.Stamp {
	return domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now().Truncate(time.Microsecond)}
}

func (s *service) change(id uuid.UUID, decide domain.VideoDecision) {
	s.Helper()
	_, err := s.videos.ChangeVideo(s.Context(), id, decide)
	must(s, err)
}

func rename(title string) domain.VideoDecision {
	return domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = title }, domain.AnyVersion, stamp())
}

func (s *service) exec(sql string, args ...any) { s.Helper(); pgtest.Execute(s, s.pool, sql, args...) }

func (s *service) count(sql string, args ...any) int {
	s.Helper()
	return pgtest.Count(s, s.pool, sql, args...)
}

const (
	pendingEvents = "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)"
	audited       = "SELECT (SELECT count(*) FROM video_catalog.audit) + (SELECT count(*) FROM video_catalog_read.audit)"
)

func (s *service) until(what string, holds func() bool) {
	s.Helper()
	pgtest.Eventually(s, time.Minute, what, holds)
}

// settled waits until everything is published, and n entries have more than their first version.
func (s *service) settled(n int) {
	s.Helper()
	s.until("everything is published and projected", func() bool {
		return s.count(pendingEvents) == 0 && s.count("SELECT count(*) FROM video_catalog_read.video_projection WHERE version > 1") == n
	})
}

// snapshots are the messages with a snapshot, each once, and the versions of a video's messages in order.
func (s *service) snapshots() (found []envelope.Message, versions map[string][]string) {
	s.Helper()
	versions = make(map[string][]string)
	seen := make(map[string]bool)
	for _, published := range s.broker.Published() {
		m, err := envelope.Parse(published.Attributes, published.Data)
		must(s, err)
		if seen[m.ID.String()] { // if a response is lost, a message is published twice
			continue
		}
		seen[m.ID.String()] = true
		versions[m.AggregateID] = append(versions[m.AggregateID], fmt.Sprint(m.Version, m.Repeat))
		if m.Repeat == envelope.RepeatSnapshot {
			found = append(found, m)
		}
	}
	return found, versions
}

// A backfill is interrupted and continued while commands change the videos. It has the current state
// of every video, also of deleted ones. A new consumer builds the right state from the snapshots and
// later events; an old consumer keeps its state. The events of the commands keep their order.
func TestNewConsumerCatchesUp(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const filled = 1200
	s.exec(`INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time, delete_time)
		SELECT gen_random_uuid(), 'Ran ' || n, '', 0, 0, '', '{}', 'draft', 1 + n % 3, now(), now(), CASE WHEN n % 5 = 0 THEN now() END FROM generate_series(1, $1) n`, filled)
	ids := s.create(6)
	if out, err := s.run(t.Context(), "backfill", "video", "--dry-run"); out != fmt.Sprintf("%d aggregates match; nothing was changed\n", filled+6) || err != nil {
		t.Errorf("dry run = %q, %v, want all", out, err)
	}
	// Nobody publishes, so the backfill waits after its first pages.
	ctx, interrupt := context.WithCancel(t.Context())
	b := backfill{aggregates: videos(), pool: s.pool, entry: s.entry(), most: 1200, progress: func(_ context.Context, done int64) {
		if done == 1000 {
			interrupt()
		}
	}}
	result, err := b.run(ctx, uuid.Nil, false)
	if result.Done != 1000 || result.Matched != filled+6 || err == nil {
		t.Errorf("interrupted backfill = %+v, %v, want 1,000 of %d", result, err, filled+6)
	}
	s.serve()
	var commands sync.WaitGroup
	for w := range 3 {
		commands.Go(func() {
			for i := range 20 {
				if _, err := s.videos.ChangeVideo(t.Context(), ids[(w+i)%len(ids)], rename(fmt.Sprint("Kagemusha ", w, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	rest, err := s.run(t.Context(), "backfill", "video", "--after", result.Last.String(), "--why", "test")
	if !strings.HasPrefix(rest, "queued the state of 206 of 206 aggregates; action ") || err != nil {
		t.Errorf("continued backfill = %q, %v, want the other 206", rest, err)
	}
	commands.Wait()
	s.until("everything is published", func() bool { return s.count(pendingEvents) == 0 })

	pgtest.WantCount(t, s.pool, 0, "snapshots in the outbox, where only events are", "SELECT count(*) FROM video_catalog.outbox WHERE event_type = 'Snapshot'")
	snapshots, versions := s.snapshots()
	if len(snapshots) != filled+6 {
		t.Errorf("%d snapshots, want one of each video", len(snapshots))
	}
	for id, all := range versions {
		order := slices.DeleteFunc(slices.Clone(all), func(v string) bool { return strings.HasSuffix(v, envelope.RepeatSnapshot) })
		for i, version := range order {
			if version != fmt.Sprint(i+1) {
				t.Errorf("events of %s = %q, want the versions in order", id, all)
				break
			}
		}
	}
	s.checkNewcomer(ids)
}

// checkNewcomer compares the videos with the entries that a new consumer builds from all published
// messages, and with the catalog.
func (s *service) checkNewcomer(ids []uuid.UUID) {
	s.Helper()
	entries := make(map[string]domain.Entry)
	for _, published := range s.broker.Published() {
		m, err := envelope.Parse(published.Attributes, published.Data)
		must(s, err)
		e, err := event.DecodeVideo(m)
		must(s, err)
		if m.Version > entries[m.AggregateID].Version {
			entries[m.AggregateID] = domain.EntryOf(e.Video)
		}
	}
	for _, id := range ids {
		v, err := s.videos.GetVideo(s.Context(), id)
		must(s, err)
		pgtest.Same(s, "entry of a new consumer", domain.EntryOf(v), entries[id.String()], cmpopts.EquateEmpty())
		s.until("the catalog has the owner's version", func() bool {
			entry, err := s.catalog.GetEntry(s.Context(), id)
			return err == nil && entry.Version == v.Version && entry.Title == v.Title
		})
	}
}

func (s *service) entry() pg.Entry {
	s.Helper()
	e, err := pg.NewEntry(actionBackfill, selection{Type: event.AggregateVideo}, pg.Actor{Name: "ann@desk", Via: "command"}, "test")
	must(s, err)
	return e
}

// inOrder returns the versions of a video that are pending, in their order.
func (s *service) inOrder(id uuid.UUID) []string {
	s.Helper()
	return pgtest.Column[string](s, s.pool, "SELECT version || coalesce(repeat, '') FROM video_catalog.outbox_pending WHERE aggregate_id = $1 ORDER BY seq", id.String())
}

// While a command locks an aggregate, a snapshot does not get in front of the command's event. Otherwise a
// claim could miss deferred events: see AppendOutbox. Pending snapshots do not count for the age
// of the backlog. The audit has their number.
func TestBackfillWaitsForTheCommand(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ids := s.create(2)
	s.exec("DELETE FROM video_catalog.outbox_pending")
	result := make(chan error, 1)
	s.change(ids[0], func(v domain.Video) (*domain.VideoEvent, error) { // under the lock
		go func() {
			_, err := s.run(t.Context(), "backfill", "video", "--why", "test")
			result <- err
		}()
		s.until("the backfill waits for a row", func() bool {
			return s.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
		})
		return rename("Kagemusha")(v)
	})
	must(t, <-result)
	if got, want := s.inOrder(ids[0]), []string{"3", "3snapshot"}; !slices.Equal(got, want) {
		t.Errorf("pending = %q, want %q", got, want)
	}
	s.exec("DELETE FROM video_catalog.outbox_pending WHERE repeat = ''")
	if got, err := pg.NewOutbox(s.pool).Measure(t.Context(), 100); err != nil || got.Pending != 2 || !got.Oldest.IsZero() {
		t.Errorf("Measure() = %+v, %v, want 2 snapshots without an age", got, err)
	}
	pgtest.WantCount(t, s.pool, 2, "items in the audit", "SELECT items FROM video_catalog.audit WHERE action = 'outbox.backfill' AND reason = 'test' AND filter = '{\"type\": \"video\"}'")
}

// The snapshot of a blocked aggregate waits behind its events, and comes when the broker takes
// them. Others are not delayed.
func TestBackfillOfABlockedAggregate(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.serve()
	ids := s.create(2)
	s.settled(2)
	admit := s.broker.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.InvalidArgument, OrderingKey: ids[0].String()})
	s.change(ids[0], rename("Kagemusha"))
	s.until("the video is blocked", func() bool { return s.count("SELECT count(*) FROM video_catalog.outbox_blocked") == 1 })
	_, err := s.run(t.Context(), "backfill", "video", "--why", "test")
	must(t, err)
	s.until("the other snapshot is published", func() bool { found, _ := s.snapshots(); return len(found) == 1 })
	admit()
	s.until("everything is published", func() bool { return s.count(pendingEvents) == 0 })
	_, versions := s.snapshots()
	if got, want := versions[ids[0].String()], []string{"1", "2", "3", "3snapshot"}; !slices.Equal(got, want) {
		t.Errorf("published of the blocked video = %q, want %q", got, want)
	}
}

// An action that cannot be written into the audit has no effect. Wrong arguments are refused with
// the reason, and change nothing.
func TestReplayMistakesAreRefused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.create(1)
	s.exec("DELETE FROM video_catalog.outbox_pending")
	const since = "2026-01-01T00:00:00Z"
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"backfill", "--why", "x"}, "must be one of the aggregate types of this service: video"},
		{[]string{"backfill", "parcel", "--why", "x"}, "must be one of"},
		{[]string{"backfill", "video"}, "--why"},
		{[]string{"backfill", "video", "--after", "7", "--why", "x"}, "-after"},
		{[]string{"backfill", "video", "--all", "--why", "x"}, "-all"},
		{[]string{"seek", "another", since, "--why", "x"}, "must be one of the query side: " + s.subscription},
		{[]string{"seek", s.subscription, since}, "--why"},
	} {
		_, err := s.run(t.Context(), test.args...)
		if got := app.ExitCode(err); got != app.ExitUsage || !strings.Contains(err.Error(), test.want) {
			t.Errorf("server %s = %d, %v, want exit code %d with %q", strings.Join(test.args, " "), got, err, app.ExitUsage, test.want)
		}
	}
	if out, err := s.run(t.Context(), "seek", s.subscription, since, "--dry-run"); err != nil || out != "the inbox has 0 events; nothing was changed\n" {
		t.Errorf("dry run = %q, %v, want what the inbox has", out, err)
	}
	b := backfill{aggregates: videos(), pool: s.pool, most: mostPending, progress: func(context.Context, int64) {}}
	if _, err := b.run(t.Context(), uuid.Nil, false); err == nil {
		t.Error("backfill without an entry = nil, want an error")
	}
	if _, err := pg.ForgetInbox(t.Context(), s.pool, "catalog", pg.Entry{}, 0); err == nil {
		t.Error("forget without an entry = nil, want an error")
	}
	if got := s.count(audited) + s.count(pendingEvents); got != 0 {
		t.Errorf("%d rows are pending or in the audit, want none", got)
	}
}

// A seek restores lost entries, although the consumer keeps its name and the inbox, of several pages,
// had all events. A second seek restores them, too.
func TestSeekAppliesRetainedEventsAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.serve()
	since := time.Now().Add(-time.Minute).Format(time.RFC3339)
	s.create(5)
	s.settled(5)
	s.exec("INSERT INTO video_catalog_read.inbox (consumer, event_id) SELECT 'catalog', gen_random_uuid() FROM generate_series(1, $1)", pg.InboxRows)
	for _, want := range []int{pg.InboxRows + 10, 10} {
		s.exec("DELETE FROM video_catalog_read.video_projection")
		out, err := s.run(t.Context(), "seek", s.subscription, since, "--why", "rows were lost")
		if err != nil || !strings.Contains(out, fmt.Sprintf("the inbox has forgotten %d events", want)) {
			t.Fatalf("seek = %q, %v, want %d events forgotten", out, err, want)
		}
		s.settled(5)
	}
	pgtest.WantCount(t, s.pool, 2, "seeks in the audit", "SELECT count(*) FROM video_catalog_read.audit WHERE action = 'inbox.seek' AND reason = 'rows were lost' AND items >= 10 AND filter ->> 'subscription' = $1 AND via = 'command'", s.subscription)
}

// If Pub/Sub refuses a seek, the inbox has already forgotten its events. The audit and the error say
// so. Running the command again does the rest.
func TestSeekThatFailsRunsAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	since := time.Now().Add(-time.Minute).Format(time.RFC3339)
	s.exec("INSERT INTO video_catalog_read.inbox (consumer, event_id) VALUES ('catalog', gen_random_uuid()), ('another', gen_random_uuid())")
	accept := s.broker.Inject(pubsublocal.Fault{Method: "Seek", Code: codes.PermissionDenied})
	if out, err := s.run(t.Context(), "seek", s.subscription, since, "--why", "x"); app.ExitCode(err) != app.ExitFailed || !strings.Contains(err.Error(), "seek again") {
		t.Errorf("seek = %q, %v, want exit code %d and what to do", out, err, app.ExitFailed)
	}
	accept()
	out, err := s.run(t.Context(), "seek", s.subscription, since, "--why", "x", "--json")
	var result operate.SeekResult
	if err != nil || json.Unmarshal([]byte(out), &result) != nil || result.Matched != 0 || result.ActionID == uuid.Nil {
		t.Errorf("seek again = %q, %v, want an inbox that is empty", out, err)
	}
	if n, left := s.count(audited), s.count("SELECT count(*) FROM video_catalog_read.inbox"); n != 2 || left != 1 {
		t.Errorf("the audit has %d seeks, and the inbox %d events, want 2, and that of the other consumer", n, left)
	}
}
