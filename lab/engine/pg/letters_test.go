package pg_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/lab/engine/rig"
)

// letters is an outbox with events named like a1, which is version 1 of
// aggregate a. Small letters are in one lane, capital ones in another.
type letters struct {
	t    testing.TB
	pool *pgxpool.Pool
	*pg.Outbox
	ids   map[string]string // of the aggregates, by letter
	names map[string]string // and the other way round

	mu   sync.Mutex
	sent map[uuid.UUID]envelope.Message // what was appended
}

func newLetters(t testing.TB, maxConns int32) *letters {
	t.Helper()
	pool := pgtest.Pool(t, maxConns)
	l := &letters{t: t, pool: pool, Outbox: pg.NewOutbox(pool), ids: make(map[string]string), names: make(map[string]string), sent: make(map[uuid.UUID]envelope.Message)}
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" {
		id, n := "", 0
		for id == "" || outbox.Lane(envelope.Aggregate{Type: "letter", ID: id}) != laneOf(string(c)) {
			n++
			id = string(c) + strconv.Itoa(n)
		}
		l.ids[string(c)], l.names[id] = id, string(c)
	}
	t.Cleanup(func() { rig.CheckInvariants(t, pool) })
	return l
}

// lanes returns an SQL array, whose n-th element is the lane of the aggregate prefix || n.
func lanes(aggregateType, prefix string, n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(int(outbox.Lane(envelope.Aggregate{Type: aggregateType, ID: prefix + strconv.Itoa(i+1)})))
	}
	return "'{" + strings.Join(all, ",") + "}'::smallint[]"
}

// letter is the aggregate of a name.
func (l *letters) letter(name string) envelope.Aggregate {
	return envelope.Aggregate{Type: "letter", ID: l.ids[name[:1]]}
}

// RequeueEvent requeues one aggregate, as an operator would.
func (l *letters) RequeueEvent(ctx context.Context, aggregate envelope.Aggregate) error {
	_, err := l.RetryBlocked(ctx, []pg.Blocked{{Aggregate: aggregate}}, operator)
	return err
}

// SkipEvent gives up the first event of an aggregate, as an operator would.
func (l *letters) SkipEvent(ctx context.Context, aggregate envelope.Aggregate, eventID uuid.UUID) error {
	n, err := l.SkipBlocked(ctx, []pg.Blocked{{Aggregate: aggregate, EventID: eventID}}, operator)
	if n == 0 && err == nil {
		return problem.Errorf(problem.NotFound, "event %s is not the first one", eventID)
	}
	return err
}

// listBlocked returns at most maxRows blocked aggregates.
func (l *letters) listBlocked(maxRows int) ([]pg.Blocked, error) {
	blocked, _, err := l.ListBlocked(l.t.Context(), pg.Filter{}, maxRows)
	return blocked, err
}

// nameOf is the name of an event.
func (l *letters) nameOf(e outbox.Claimed) string {
	return l.names[e.AggregateID] + strconv.FormatInt(e.Version, 10)
}

// append appends events, in one transaction each if to is the pool, and returns
// the id of the last.
func (l *letters) append(to pgtest.DB, names string) (id uuid.UUID) {
	l.t.Helper()
	for name := range strings.FieldsSeq(names) {
		id = newID(l.t)
		l.appendAs(to, id, name)
	}
	return id
}

// appendAs appends an event with an id. Its other fields are made from its name.
// Every third version is so long that it is stored out of line.
func (l *letters) appendAs(to pgtest.DB, id uuid.UUID, name string) {
	l.t.Helper()
	version, err := strconv.Atoi(name[1:])
	must(l.t, err)
	payload := []byte(name)
	if version%3 == 0 {
		payload = append(payload, make([]byte, 3000)...)
		_, _ = rand.Read(payload[len(name):]) // it never fails
	}
	m := envelope.Message{
		ID: id, AggregateType: "letter", AggregateID: l.ids[name[:1]], Type: "Wrote" + name, Version: int64(version), SchemaVersion: int32(version) + 1,
		Payload: payload, OccurredAt: epoch.Add(time.Duration(version-1) * time.Second), Traceparent: "trace of " + name,
	}
	pgtest.Append(l.t, to, m)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[id] = m
}

// differ returns the difference between the events of a claim and the events
// that append appended.
func (l *letters) differ(claim outbox.Claim) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var want, got []envelope.Message
	for _, e := range claim.Events {
		if m, ours := l.sent[e.ID]; ours || e.ID == uuid.Nil {
			want, got = append(want, m), append(got, e.Message)
		}
	}
	return cmp.Diff(want, got)
}

const hour = time.Hour

// claim claims at most batch pending events of one lane.
func (l *letters) claim(batch int, lease time.Duration) outbox.Claim {
	l.t.Helper()
	return l.claimOf(1, batch, lease)
}

// claimOf claims at most batch pending events of at most some lanes.
func (l *letters) claimOf(lanes, batch int, lease time.Duration) outbox.Claim {
	l.t.Helper()
	claim, err := l.ClaimEvents(l.t.Context(), outbox.Limits{Lanes: lanes, Events: batch, Bytes: 1 << 20, Lease: lease})
	must(l.t, err)
	if diff := l.differ(claim); diff != "" {
		l.t.Fatalf("claimed events (-appended +claimed):\n%s", diff)
	}
	return claim
}

// claimNames makes a claim, which must return the events named in want.
func (l *letters) claimNames(batch int, want string) outbox.Claim {
	l.t.Helper()
	claim := l.claim(batch, hour)
	if got := l.namesOf(claim); got != want {
		l.t.Fatalf("claimed %q, want %q", got, want)
	}
	return claim
}

// namesOf returns the names of a claim's events. A deferred one is followed by
// its attempts, a blocked one by an exclamation mark.
func (l *letters) namesOf(claim outbox.Claim) string {
	var names []string
	for _, e := range claim.Events {
		name := l.nameOf(e)
		if e.Deferred {
			name += "/" + strconv.Itoa(e.Attempts)
		}
		if e.Behind {
			name += "!"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// settle records what became of a claim, and must hold the lease.
func (l *letters) settle(settlement outbox.Settlement) {
	l.t.Helper()
	held, err := l.SettleClaim(l.t.Context(), settlement)
	if err != nil || !held {
		l.t.Fatalf("SettleClaim() = %t, %v, want true, nil", held, err)
	}
}

// settlement returns the settlement of a claim whose named events the broker
// refused. It acknowledged all others that are not blocked or behind them.
func (l *letters) settlement(claim outbox.Claim, refused string) outbox.Settlement {
	return pgtest.Settlement(claim, func(e outbox.Claimed) bool { return slices.Contains(strings.Fields(refused), l.nameOf(e)) })
}

// due makes a blocked aggregate due now.
func (l *letters) due(name string) {
	l.t.Helper()
	execute(l.t, l.pool, "UPDATE video_catalog.outbox_blocked SET next_retry_at = now() WHERE aggregate_id = $1", l.letter(name).ID)
}

// endLeases ends all leases, as time does.
func (l *letters) endLeases() {
	l.t.Helper()
	execute(l.t, l.pool, "UPDATE video_catalog.outbox_lanes SET leased_until = clock_timestamp()")
}

// left returns how many events are pending or deferred.
func (l *letters) left() int {
	l.t.Helper()
	return l.count("SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)")
}

// begin begins a transaction, which is rolled back at the end of the test.
func (l *letters) begin() pgx.Tx {
	l.t.Helper()
	tx, err := l.pool.Begin(l.t.Context())
	must(l.t, err)
	l.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(l.t.Context())) })
	return tx
}

// count returns a number from the database.
func (l *letters) count(sql string, args ...any) int {
	l.t.Helper()
	return count(l.t, l.pool, sql, args...)
}

// reaches waits until the count is at least want.
func (l *letters) reaches(want int, sql string) {
	l.t.Helper()
	pgtest.Eventually(l.t, 20*time.Second, fmt.Sprintf("%s is %d", sql, want), func() bool { return l.count(sql) >= want })
}
