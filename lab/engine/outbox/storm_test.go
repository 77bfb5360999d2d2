package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/lab/engine/rig"
)

// book is where the brokers of a test write down what they are sent.
type book struct {
	mu   sync.Mutex
	sent []envelope.Message
	by   []int // the publisher
}

func (b *book) write(publisher int, m envelope.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, m)
	b.by = append(b.by, publisher)
}

// storm is a database with writers of letters and publishers.
type storm struct {
	t    testing.TB
	url  string
	pool *pgxpool.Pool
	book book

	mu         sync.Mutex
	publishers []*outbox.Publisher
}

// newStorm makes the database of a storm. One transaction in twenty commits
// late: up to 20 ms after it drew its place in the outbox.
func newStorm(t testing.TB) *storm {
	t.Helper()
	s := &storm{t: t, url: storetest.URL(t)}
	s.pool = s.connect(16)
	if _, err := s.pool.Exec(t.Context(), `
		CREATE TABLE letters (id uuid PRIMARY KEY, version bigint NOT NULL);
		CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF random() < 0.05 THEN PERFORM pg_sleep(random() * 0.02); END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON video_catalog.outbox_pending DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION late()`); err != nil {
		t.Fatal(err)
	}
	return s
}

// connect makes a pool like one of another process.
func (s *storm) connect(maxConns int32) *pgxpool.Pool {
	s.t.Helper()
	pool, err := db.Open(s.t.Context(), s.url, maxConns, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return pool
}

// wake wakes one of the publishers, as if the writer were in its process.
func (s *storm) wake(aggregate envelope.Aggregate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.publishers); n > 0 {
		s.publishers[rand.N(n)].Wake(aggregate)
	}
}

// publish runs a publisher with connections of its own until stop is called.
func (s *storm) publish(cfg outbox.Config, around func(outbox.Store) outbox.Store, to outbox.Broker) (stop func()) {
	s.t.Helper()
	var events outbox.Store = store.NewOutbox(s.connect(int32(cfg.Workers)))
	if around != nil {
		events = around(events)
	}
	publisher := mustNew(s.t, events, to, cfg)
	s.mu.Lock()
	s.publishers = append(s.publishers, publisher)
	s.mu.Unlock()
	return run(s.t, publisher)
}

// write lets 16 writers make and change letters, each of them some times, and
// returns when they are done.
func (s *storm) write(aggregates, changes int) {
	s.t.Helper()
	ids := make([]uuid.UUID, aggregates)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	const writers = 16
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < aggregates; i += writers {
				s.mustChange(ids[i])
			}
			for range changes {
				s.mustChange(ids[rand.N(aggregates)])
			}
		})
	}
	wg.Wait()
}

// mustChange is change, for any goroutine.
func (s *storm) mustChange(id uuid.UUID) {
	if err := s.change(id); err != nil {
		s.t.Errorf("writer: %v", err)
	}
}

// change writes the next version of a letter, or the first, and its event, in one
// transaction as a store does: under the lock of the row, and the event last. One
// in twenty is slow.
func (s *storm) change(id uuid.UUID) error {
	e := newEvent(id)
	err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(s.t.Context(), `
			INSERT INTO letters AS l (id, version) VALUES ($1, 1)
			ON CONFLICT (id) DO UPDATE SET version = l.version + 1 RETURNING version`, id).Scan(&e.Version); err != nil {
			return err
		}
		if rand.N(20) == 0 {
			time.Sleep(rand.N(5 * time.Millisecond))
		}
		return storetest.TryAppend(s.t.Context(), tx, e)
	})
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		s.wake(e.Aggregate()) // it is committed, or may be
	}
	return err
}

// newEvent is the first event of a letter.
func newEvent(id uuid.UUID) envelope.Message {
	return envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id.String(), Type: "LetterChanged", Version: 1, SchemaVersion: 1,
		Payload: bytes.Repeat([]byte("x"), 100), OccurredAt: time.Now(),
	}
}

// settled waits until nothing is pending.
func (s *storm) settled() {
	s.t.Helper()
	eventually(s.t, "nothing is pending", func() bool {
		var pending bool
		err := s.pool.QueryRow(s.t.Context(), "SELECT EXISTS (SELECT 1 FROM video_catalog.outbox_pending) OR EXISTS (SELECT 1 FROM video_catalog.outbox_deferred)").Scan(&pending)
		return err == nil && !pending
	})
}

// check compares what was sent with what was committed, and returns how many
// events there are and how many were sent again.
func (s *storm) check() (events, duplicates int) {
	s.t.Helper()
	checkInvariants(s.t, s.pool)
	for _, sql := range []string{"SELECT count(*) FROM video_catalog.outbox_pending", "SELECT count(*) FROM video_catalog.outbox_deferred", "SELECT count(*) FROM video_catalog.outbox_blocked"} {
		if n := count(s.t, s.pool, sql); n != 0 {
			s.t.Errorf("%s = %d, want 0", sql, n)
		}
	}
	committed := make(map[uuid.UUID]bool)
	rows, err := s.pool.Query(s.t.Context(), "SELECT id FROM video_catalog.outbox")
	if err != nil {
		s.t.Fatal(err)
	}
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			s.t.Fatal(err)
		}
		committed[id] = true
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	sent := make(map[uuid.UUID]bool)
	last := make(map[string]int64)
	for i, m := range s.book.sent {
		if !committed[m.ID] {
			s.t.Errorf("version %d of %s was sent and never committed", m.Version, m.AggregateID)
		}
		if sent[m.ID] {
			duplicates++
			continue
		}
		sent[m.ID] = true
		if m.Version != last[m.AggregateID]+1 {
			s.t.Errorf("version %d of %s came first after version %d, from publisher %d", m.Version, m.AggregateID, last[m.AggregateID], s.book.by[i])
		}
		last[m.AggregateID] = m.Version
	}
	if len(sent) != len(committed) {
		s.t.Errorf("%d events were sent, want all %d", len(sent), len(committed))
	}
	return len(committed), duplicates
}

// Sixteen writers, four publishers, and nobody crashes: every event is
// published exactly once, in the order of its aggregate, and none waits for
// PollInterval.
func TestPublishersShareTheOutbox(t *testing.T) {
	t.Parallel()
	events := 0
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s := newStorm(t)
			var stops []func()
			for n := range 4 {
				stops = append(stops, s.publish(outbox.Config{Workers: 2, Batch: 20, PollInterval: time.Minute}, nil, broker(func(m envelope.Message) outbox.Receipt {
					s.book.write(n, m)
					return answerAfter(rand.N(2*time.Millisecond), nil)
				})))
			}
			s.write(50, 20)
			s.settled()
			for _, stop := range stops {
				stop()
			}
			n, duplicates := s.check()
			if duplicates > 0 {
				t.Errorf("%d events were sent again, want none", duplicates)
			}
			events += n
		})
	}
	t.Logf("%d events", events)
}

// hazard is a store whose process crashes or is stopped at random, and then
// goes on, as if it had been started again or were a zombie.
type hazard struct {
	outbox.Store
	shared *hazards
}

// hazards is what the hazards of a test have in common. A lease that runs out
// is written into the database: no test waits for it, and a slow machine
// cannot come too late for it.
type hazards struct {
	t      testing.TB
	pool   *pgxpool.Pool
	chance float64 // of each hazard
	mu     sync.Mutex
	tokens map[int16][]int64 // of the claims of each lane, in their order

	crashes, zombies, fenced atomic.Int64
}

func (h *hazards) hits() bool { return rand.Float64() < h.chance }

// claims returns the number of claims of a lane, and the token of the last one.
func (h *hazards) claims(lane int16) (n int, last int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n = len(h.tokens[lane]); n > 0 {
		last = h.tokens[lane][n-1]
	}
	return n, last
}

// expire ends the lease of the last claim of a lane.
func (h *hazards) expire(lane int16) {
	_, token := h.claims(lane)
	if _, err := h.pool.Exec(context.Background(), "UPDATE video_catalog.outbox_lanes SET leased_until = now() WHERE lane = $1 AND token = $2", lane, token); err != nil {
		h.t.Errorf("expire the lease of lane %d: %v", lane, err)
	}
}

// oversleep returns when the lease of a lane has ended and another publisher
// has claimed the lane, or after a second: all may be asleep.
func (h *hazards) oversleep(lane int16) {
	before, _ := h.claims(lane)
	h.expire(lane)
	for start := time.Now(); time.Since(start) < time.Second; time.Sleep(time.Millisecond) {
		if n, _ := h.claims(lane); n > before {
			return
		}
	}
}

// oversleepWith is oversleep for the lane of a letter.
func (h *hazards) oversleepWith(aggregateID string) {
	h.oversleep(outbox.Lane(letter(aggregateID)))
}

var errCrashed = errors.New("crashed")

func (h *hazard) ClaimEvents(ctx context.Context, lane int16, batch int, bytes int64, lease time.Duration) (outbox.Claim, error) {
	claim, err := h.Store.ClaimEvents(ctx, lane, batch, bytes, lease)
	if claim.Token == 0 {
		return claim, err
	}
	// Only what is in the list can expire: the next claim of the lane comes after this one.
	h.shared.mu.Lock()
	h.shared.tokens[claim.Lane] = append(h.shared.tokens[claim.Lane], claim.Token)
	h.shared.mu.Unlock()
	switch {
	case h.shared.hits(): // between claim and publish
		h.shared.crashes.Add(1)
		h.shared.expire(claim.Lane)
		return outbox.Claim{}, errCrashed
	case h.shared.hits():
		h.shared.zombies.Add(1)
		h.shared.oversleep(claim.Lane)
	}
	return claim, err
}

func (h *hazard) SettleClaim(ctx context.Context, settlement outbox.Settlement) (bool, error) {
	switch {
	case h.shared.hits(): // between publish and settle
		h.shared.crashes.Add(1)
		h.shared.expire(settlement.Lane)
		return true, nil
	case h.shared.hits():
		h.shared.zombies.Add(1)
		h.shared.oversleep(settlement.Lane)
		ctx = context.WithoutCancel(ctx)
	}
	h.shared.mu.Lock()
	tokens := h.shared.tokens[settlement.Lane]
	mine := slices.Index(tokens, settlement.Token)
	retaken := mine >= 0 && mine < len(tokens)-1
	h.shared.mu.Unlock()
	held, err := h.Store.SettleClaim(ctx, settlement)
	if retaken {
		if held {
			h.shared.t.Errorf("the settlement of token %d took effect after its lane was claimed again", settlement.Token)
		}
		h.shared.fenced.Add(1)
	}
	return held, err
}

// client is a broker that sends the messages of a key one after another, and
// may fall asleep before one of them for longer than a lease. It sends what it
// holds also when nobody waits for it any longer.
type client struct {
	write  func(envelope.Message)
	sleep  func(aggregateID string)
	chance float64

	mu      sync.Mutex
	last    map[string]chan struct{} // closed when the last message of a key is sent
	sending sync.WaitGroup
}

func (c *client) Publish(m envelope.Message) outbox.Receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, sent := c.last[m.AggregateID], make(chan struct{})
	c.last[m.AggregateID] = sent
	sleepy := rand.Float64() < c.chance
	c.sending.Go(func() {
		if before != nil {
			<-before
		}
		if sleepy {
			c.sleep(m.AggregateID)
		}
		c.write(m)
		close(sent)
	})
	return receipt(func(ctx context.Context) error {
		select {
		case <-sent:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// Publishers crash, and wake up after their leases: nothing is lost, first
// deliveries are in the order of the aggregate, and no zombie settles.
func TestPublishersCrashAndOversleep(t *testing.T) {
	t.Parallel()
	const runs = 6
	var wg sync.WaitGroup
	var allCrashes, allZombies, allFenced atomic.Int64
	for range runs {
		s := newStorm(t)
		wg.Go(func() {
			shared := &hazards{t: t, pool: s.pool, chance: 0.03, tokens: make(map[int16][]int64)}
			var stops []func()
			for n := range 4 {
				to := &client{write: func(m envelope.Message) { s.book.write(n, m) }, sleep: shared.oversleepWith, chance: 0.002, last: make(map[string]chan struct{})}
				cfg := outbox.Config{
					Workers: 2, Batch: 20, Lease: time.Minute, PollInterval: 20 * time.Millisecond,
					RetryMin: time.Millisecond, ProbeInterval: 40 * time.Millisecond,
				}
				stop := s.publish(cfg, func(events outbox.Store) outbox.Store { return &hazard{events, shared} }, to)
				stops = append(stops, func() {
					stop()
					to.sending.Wait()
				})
			}
			s.write(50, 60)
			s.settled()
			for _, stop := range stops {
				stop()
			}
			events, duplicates := s.check()
			crashes, zombies, fenced := shared.crashes.Load(), shared.zombies.Load(), shared.fenced.Load()
			t.Logf("%d events, %d crashes, %d zombies, %d fenced settlements, %d duplicates", events, crashes, zombies, fenced, duplicates)
			// Each hazard repeats one pass at most, and a sleeping client some of its lane.
			if duplicates > 2*events {
				t.Errorf("%d duplicates of %d events, want at most twice as many", duplicates, events)
			}
			allCrashes.Add(crashes)
			allZombies.Add(zombies)
			allFenced.Add(fenced)
		})
	}
	wg.Wait()
	if crashes, zombies, fenced := allCrashes.Load(), allZombies.Load(), allFenced.Load(); crashes == 0 || zombies == 0 || fenced == 0 {
		t.Errorf("%d crashes, %d zombies and %d fenced settlements, want some of each", crashes, zombies, fenced)
	}
}

// The client of the broker sends several messages of a key in one request, and
// the broker refuses all of it for one that the schema of the topic does not
// know. That one is found and parked, and what is before it published.
func TestPoisonInARequestIsFound(t *testing.T) {
	t.Parallel()
	for _, maxAttempts := range []int{1, 4} {
		t.Run(fmt.Sprint(maxAttempts), func(t *testing.T) { findPoison(t, maxAttempts) })
	}
}

func findPoison(t *testing.T, maxAttempts int) {
	t.Parallel()
	const events, poisoned = 5, 3
	s := newStorm(t)
	client, server := newClient(t)
	const project, topic = "projects/test-project", "projects/test-project/topics/with-schema"
	conn, err := grpc.NewClient(server.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	schema, err := pubsubpb.NewSchemaServiceClient(conn).CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{
		Parent: project, SchemaId: "known",
		Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: `syntax = "proto3"; message Event { string known = 1; }`},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{
		Name: topic, SchemaSettings: &pubsubpb.SchemaSettings{Schema: schema.GetName(), Encoding: pubsubpb.Encoding_BINARY},
	}); err != nil {
		t.Fatal(err)
	}
	broker := outbox.NewTopic(client.Publisher(topic), requestTimeout, 1000)
	t.Cleanup(broker.Stop)
	const known, unknown = "\x0a\x01x", "\x12\x01x" // fields 1 and 2
	id := uuid.Must(uuid.NewV7())
	for version := 1; version <= events; version++ {
		e := newEvent(id)
		e.Version, e.Payload = int64(version), []byte(known)
		if version == poisoned {
			e.Payload = []byte(unknown)
		}
		storetest.Append(t, s.pool, e)
	}
	stop := s.publish(outbox.Config{Workers: 1, MaxAttempts: maxAttempts, RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, PollInterval: 5 * time.Millisecond}, nil, broker)
	defer stop()
	var blocked []admin.Blocked
	eventually(t, "it is parked", func() bool {
		var err error
		if blocked, err = listBlocked(t, s.pool); err != nil {
			t.Fatal(err)
		}
		return len(blocked) == 1 && !blocked[0].ParkedAt.IsZero()
	})
	if got, attempts := blocked[0], max(2, maxAttempts); got.Version != poisoned || got.Attempts != attempts {
		t.Errorf("version %d is parked after %d attempts, want version %d after %d", got.Version, got.Attempts, poisoned, attempts)
	}
	if got := len(server.Published()); got != poisoned-1 {
		t.Errorf("%d events are published, want the %d before it", got, poisoned-1)
	}
	if _, err := store.NewOutbox(s.pool).SkipBlocked(t.Context(), blocked, rig.Operator); err != nil {
		t.Fatal(err)
	}
	s.settled()
	if got := len(server.Published()); got != events-1 {
		t.Errorf("%d events are published, want all but one of %d", got, events)
	}
}
