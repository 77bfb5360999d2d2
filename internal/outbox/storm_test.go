package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// storm is a database with writers of letters, publishers, and a broker that keeps the events
// sent to it.
type storm struct {
	t    testing.TB
	url  string
	pool *pgxpool.Pool

	mu         sync.Mutex
	publishers []*outbox.Publisher
	sent       []envelope.Message
}

// newStorm makes the database of a storm. One transaction in twenty commits late: up to 20 ms
// after it drew its place in the outbox.
func newStorm(t testing.TB) *storm {
	t.Helper()
	s := &storm{t: t, url: pgtest.URL(t)}
	s.pool = s.connect(12)
	pgtest.Execute(t, s.pool, `
		CREATE TABLE letters (id uuid PRIMARY KEY, version bigint NOT NULL);
		CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF random() < 0.05 THEN PERFORM pg_sleep(random() * 0.02); END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON video_catalog.outbox_pending DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION late()`)
	return s
}

// connect makes a pool like one of another process.
func (s *storm) connect(maxConns int32) *pgxpool.Pool {
	s.t.Helper()
	return pgtest.Open(s.t, s.url, maxConns)
}

// publish runs a publisher with connections of its own until stop is called, which waits for it.
// around may be nil.
func (s *storm) publish(cfg outbox.Config, around func(outbox.Store) outbox.Store, to outbox.Broker) (stop func()) {
	s.t.Helper()
	cfg.Workers = 2
	var events outbox.Store = pg.NewOutbox(s.connect(2))
	if around != nil {
		events = around(events)
	}
	publisher, err := outbox.New(events, to, cfg, slog.New(slog.DiscardHandler), noop.Meter{})
	pgtest.Must(s.t, err)
	s.mu.Lock()
	s.publishers = append(s.publishers, publisher)
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := publisher.Run(ctx); err != nil {
			s.t.Errorf("Run() = %v, want nil", err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// broker is a function as a broker.
type broker func(m envelope.Message) outbox.Receipt

func (b broker) Publish(m envelope.Message) outbox.Receipt { return b(m) }

// receipt is a function as a receipt.
type receipt func() error

func (r receipt) Wait(context.Context) error { return r() }

// take is a broker that acknowledges, after up to two milliseconds.
func (s *storm) take(m envelope.Message) outbox.Receipt {
	s.mu.Lock()
	s.sent = append(s.sent, m)
	s.mu.Unlock()
	return receipt(func() error {
		time.Sleep(rand.N(2 * time.Millisecond))
		return nil
	})
}

// versions returns the versions of a letter in the order in which they were sent.
func (s *storm) versions(id uuid.UUID) (versions []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sent {
		if m.AggregateID == id.String() {
			versions = append(versions, m.Version)
		}
	}
	return versions
}

// write lets 8 writers change letters.
func (s *storm) write(letters, changes int) {
	s.t.Helper()
	ids := make([]uuid.UUID, letters)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range changes {
				s.change(ids[rand.N(letters)])
			}
		})
	}
	writers.Wait()
}

// change writes the next version of a letter and its event in one transaction, as a store does:
// under the lock of the row, and the event last.
func (s *storm) change(id uuid.UUID) {
	s.t.Helper()
	e := envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id.String(), Type: "LetterChanged", SchemaVersion: 1,
		Payload: []byte("x"), OccurredAt: time.Now(),
	}
	err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(s.t.Context(), `
			INSERT INTO letters AS l (id, version) VALUES ($1, 1)
			ON CONFLICT (id) DO UPDATE SET version = l.version + 1 RETURNING version`, id).Scan(&e.Version); err != nil {
			return err
		}
		return pgtest.TryAppend(s.t.Context(), tx, e)
	})
	if err != nil {
		s.t.Errorf("write a letter: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.publishers); n > 0 {
		s.publishers[rand.N(n)].Wake() // as if the writer were in its process
	}
}

// settled waits until nothing is pending.
func (s *storm) settled() {
	s.t.Helper()
	pgtest.Eventually(s.t, 20*time.Second, "nothing is pending", func() bool {
		return s.count("SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)") == 0
	})
}

func (s *storm) count(sql string) int { s.t.Helper(); return pgtest.Count(s.t, s.pool, sql) }

// check compares what was sent with what was committed. It returns how many events there are,
// and how many were sent again.
func (s *storm) check() (events, duplicates int) {
	s.t.Helper()
	sent, last := make(map[uuid.UUID]bool), make(map[string]int64)
	for _, m := range s.sent {
		if sent[m.ID] {
			duplicates++
			continue
		}
		sent[m.ID] = true
		if m.Version != last[m.AggregateID]+1 {
			s.t.Errorf("version %d of %s came first after version %d", m.Version, m.AggregateID, last[m.AggregateID])
		}
		last[m.AggregateID] = m.Version
	}
	if want := s.count("SELECT sum(version) FROM letters"); len(sent) != want {
		s.t.Errorf("%d events were sent, want the %d that were committed", len(sent), want)
	}
	return len(sent), duplicates
}

// crashing is a store whose process crashes and restarts again and again. A crash frees the
// claimed lanes at once, so that no test waits for a lease.
type crashing struct {
	outbox.Store
	storm *storm
	calls *atomic.Int64
}

func (c crashing) ClaimEvents(ctx context.Context, limits outbox.Limits) (outbox.Claim, error) {
	claim, err := c.Store.ClaimEvents(ctx, limits)
	if claim.Token != 0 && c.crashes(claim.Token) { // before it publishes
		return outbox.Claim{}, errors.New("crashed")
	}
	return claim, err
}

func (c crashing) SettleClaim(ctx context.Context, s outbox.Settlement) (bool, error) {
	if c.crashes(s.Token) { // after it has published
		return true, nil
	}
	return c.Store.SettleClaim(ctx, s)
}

func (c crashing) crashes(token int64) bool {
	if c.calls.Add(1)%10 != 0 {
		return false
	}
	const sql = "UPDATE video_catalog.outbox_lanes SET leased_until = now() WHERE token = $1"
	if _, err := c.storm.pool.Exec(context.Background(), sql, token); err != nil {
		c.storm.t.Errorf("end a lease: %v", err)
	}
	return true
}

// Eight writers and three publishers: every event is published, and the first deliveries of a
// letter are in the order of its versions. While no publisher crashes, no event comes twice, and
// none waits for a poll.
func TestStormLosesNothing(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]bool{"no crash": false, "crashes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStorm(t)
			poll := time.Minute
			var around func(outbox.Store) outbox.Store
			if crash {
				poll = 20 * time.Millisecond
				around = func(events outbox.Store) outbox.Store { return crashing{events, s, new(atomic.Int64)} }
			}
			var stops []func()
			for range 3 {
				stops = append(stops, s.publish(outbox.Config{Batch: 10, PollInterval: poll}, around, broker(s.take)))
			}
			s.write(20, 50)
			s.settled()
			for _, stop := range stops {
				stop()
			}
			events, duplicates := s.check()
			t.Logf("%d events, %d duplicates", events, duplicates)
			if duplicates > 0 && !crash {
				t.Errorf("%d events were sent again, want none", duplicates)
			}
		})
	}
}
