package outbox_test

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// table is an outbox in PostgreSQL, and its publisher, if it has one.
type table struct {
	t         testing.TB
	pool      *pgxpool.Pool
	version   map[uuid.UUID]int64 // the newest one of a letter
	publisher *outbox.Publisher
}

func newTable(t testing.TB) *table {
	t.Helper()
	return &table{t: t, pool: pgtest.Pool(t, 8), version: make(map[uuid.UUID]int64)}
}

// publish runs a publisher until stop is called.
func (s *table) publish(cfg outbox.Config, around func(outbox.Store) outbox.Store, to outbox.Broker) (stop func()) {
	s.t.Helper()
	var events outbox.Store = pg.NewOutbox(s.pool)
	if around != nil {
		events = around(events)
	}
	s.publisher = mustNew(s.t, events, to, cfg)
	return run(s.t, s.publisher)
}

// change appends the next event of a letter.
func (s *table) change(id uuid.UUID) {
	s.t.Helper()
	e := newEvent(id)
	s.version[id]++
	e.Version = s.version[id]
	pgtest.Append(s.t, s.pool, e)
	if s.publisher != nil {
		s.publisher.Wake()
	}
}

// newEvent is the first event of a letter.
func newEvent(id uuid.UUID) envelope.Message {
	return envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id.String(), Type: "LetterChanged", Version: 1, SchemaVersion: 1,
		Payload: bytes.Repeat([]byte("x"), 100), OccurredAt: time.Now(),
	}
}

// settled waits until nothing is pending.
func (s *table) settled() {
	s.t.Helper()
	pgtest.Eventually(s.t, 20*time.Second, "nothing is pending", func() bool { return s.left() == 0 })
}

// pipe is a whole publisher: PostgreSQL, the client, and a Pub/Sub server.
type pipe struct {
	*table
	server *localbroker.Server
	ids    []uuid.UUID
	claims atomic.Int64
}

// counted is a store whose claims are counted.
type counted struct {
	outbox.Store
	claims *atomic.Int64
}

func (s counted) ClaimEvents(ctx context.Context, limits outbox.Limits) (outbox.Claim, error) {
	s.claims.Add(1)
	return s.Store.ClaimEvents(ctx, limits)
}

// requestTimeout is how long the client tries a request.
const requestTimeout = 4 * time.Second

// newPipe makes a pipe with some letters, whose first event is published.
func newPipe(t testing.TB, letters int, cfg outbox.Config) (p *pipe, stop func()) {
	t.Helper()
	p = &pipe{table: newTable(t)}
	topic, server := newTopic(t, requestTimeout, 1000)
	p.server = server
	stop = p.publish(cfg, func(events outbox.Store) outbox.Store { return counted{events, &p.claims} }, topic)
	for range letters {
		p.ids = append(p.ids, uuid.Must(uuid.NewV7()))
	}
	p.changeAll()
	p.settled()
	return p, stop
}

// changeAll makes one more event of each letter.
func (p *pipe) changeAll() {
	p.t.Helper()
	for _, id := range p.ids {
		p.change(id)
	}
}

// stored returns the versions of a letter that the server has, each once, in
// the order of their first arrival.
func (p *pipe) stored(id uuid.UUID) (versions []string) {
	for _, m := range p.server.Published() {
		if version := m.Attributes[envelope.AttrVersion]; m.OrderingKey == id.String() && !slices.Contains(versions, version) {
			versions = append(versions, version)
		}
	}
	return versions
}

// blocked returns the blocked aggregates.
func (p *pipe) blocked() []pg.Blocked {
	p.t.Helper()
	blocked, err := listBlocked(p.t, p.pool)
	if err != nil {
		p.t.Fatal(err)
	}
	return blocked
}

// A topic that does not exist, or may not be published to, is an outage. No
// aggregate is blocked, and the topic is tried about once a second.
func TestTopicThatRefusesEverythingIsAnOutage(t *testing.T) {
	t.Parallel()
	t.Run("NotFound", func(t *testing.T) {
		t.Parallel()
		client, server := newClient(t)
		const name = "projects/test-project/topics/made.later"
		topic := outbox.NewTopic(client.Publisher(name), requestTimeout, 100)
		defer topic.Stop()
		s := newTable(t)
		s.change(uuid.Must(uuid.NewV7()))
		stop := s.publish(outbox.Config{Workers: 2}, nil, topic)
		time.Sleep(2 * time.Second)
		if blocked, err := listBlocked(t, s.pool); len(blocked) > 0 || err != nil {
			t.Errorf("blocked: %+v, %v, want nothing", blocked, err)
		}
		if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: name}); err != nil {
			t.Fatal(err)
		}
		s.settled()
		stop()
		if n := len(server.Published()); n != 1 {
			t.Errorf("%d messages were stored, want 1", n)
		}
	})
	t.Run("PermissionDenied", func(t *testing.T) {
		t.Parallel()
		p, stop := newPipe(t, 5, outbox.Config{Workers: 4, MaxAttempts: 1})
		remove := p.server.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.PermissionDenied})
		p.changeAll()
		p.changeAll()
		claims := p.claims.Load()
		time.Sleep(3 * time.Second)
		// A pause is at least half a second, except the first ones.
		if n := p.claims.Load() - claims; n > 20 {
			t.Errorf("%d claims in 3s, want at most 20", n)
		}
		if blocked := p.blocked(); len(blocked) > 0 {
			t.Errorf("blocked: %+v, want nothing", blocked)
		}
		remove()
		p.settled()
		stop()
		for _, id := range p.ids {
			if diff := cmp.Diff([]string{"1", "2", "3"}, p.stored(id)); diff != "" {
				t.Errorf("versions as they were first stored (-want +got):\n%s", diff)
			}
		}
		checkInvariants(t, p.pool)
	})
}

// left returns how many events are pending or deferred.
func (s *table) left() int {
	s.t.Helper()
	return pgtest.Count(s.t, s.pool, "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)")
}
