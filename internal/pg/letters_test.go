package pg_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// letters is an outbox with events named like a1, which is version 1 of aggregate a. Small
// letters are in one lane, capital ones in another.
type letters struct {
	t    testing.TB
	pool *pgxpool.Pool
	*pg.Outbox
	ids map[string]string // the id of each letter
}

func newLetters(t testing.TB, maxConns int32) *letters {
	t.Helper()
	pool := pgtest.Pool(t, maxConns)
	l := &letters{t: t, pool: pool, Outbox: pg.NewOutbox(pool), ids: make(map[string]string)}
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" {
		id, n := "", 0
		for id == "" || outbox.Lane(envelope.Aggregate{Type: "letter", ID: id}) != laneOf(string(c)) {
			n++
			id = string(c) + strconv.Itoa(n)
		}
		l.ids[string(c)] = id
	}
	return l
}

// laneOf is the lane of a letter.
func laneOf(letter string) int16 {
	if letter >= "a" {
		return 3
	}
	return 5
}

// letter is the aggregate of a name.
func (l *letters) letter(name string) envelope.Aggregate {
	return envelope.Aggregate{Type: "letter", ID: l.ids[name[:1]]}
}

// nameOf is the name of an event.
func nameOf(e outbox.Claimed) string { return e.AggregateID[:1] + strconv.FormatInt(e.Version, 10) }

// append appends events, in one transaction each if to is the pool, and returns the id of the
// last.
func (l *letters) append(to pgtest.DB, names string) (id uuid.UUID) {
	l.t.Helper()
	for name := range strings.FieldsSeq(names) {
		version, err := strconv.ParseInt(name[1:], 10, 64)
		if err != nil {
			l.t.Fatal(err)
		}
		id = newID(l.t)
		pgtest.Append(l.t, to, envelope.Message{
			ID: id, AggregateType: "letter", AggregateID: l.ids[name[:1]], Type: "Wrote", Version: version, Payload: []byte(name), OccurredAt: epoch,
		})
	}
	return id
}

const hour = time.Hour

// claim claims at most batch pending events of one lane.
func (l *letters) claim(batch int, lease time.Duration) outbox.Claim {
	l.t.Helper()
	return l.claimLanes(1, batch, lease)
}

// claimLanes claims at most batch pending events of some lanes.
func (l *letters) claimLanes(lanes, batch int, lease time.Duration) outbox.Claim {
	l.t.Helper()
	claim, err := l.ClaimEvents(l.t.Context(), outbox.Limits{Lanes: lanes, Events: batch, Bytes: 1 << 20, Lease: lease})
	if err != nil {
		l.t.Fatal(err)
	}
	return claim
}

// claimNames makes a claim, which must return the events that are named. The name of a deferred
// event ends with its attempts, the name of a blocked event with an exclamation mark.
func (l *letters) claimNames(batch int, want string) outbox.Claim {
	l.t.Helper()
	claim := l.claim(batch, hour)
	var names []string
	for _, e := range claim.Events {
		name := nameOf(e)
		if e.Deferred {
			name += "/" + strconv.Itoa(e.Attempts)
		}
		if e.Blocked {
			name += "!"
		}
		names = append(names, name)
	}
	if got := strings.Join(names, " "); got != want {
		l.t.Fatalf("claimed %q, want %q", got, want)
	}
	return claim
}

// settle settles a claim: the broker refused the named events, and acknowledged the others.
// The claim must hold its lease.
func (l *letters) settle(claim outbox.Claim, refused string) {
	l.t.Helper()
	l.record(l.settlement(claim, refused))
}

func (l *letters) record(s outbox.Settlement) {
	l.t.Helper()
	if held, err := l.SettleClaim(l.t.Context(), s); err != nil || !held {
		l.t.Fatalf("SettleClaim() = %t, %v, want true, nil", held, err)
	}
}

func (l *letters) settlement(claim outbox.Claim, refused string) outbox.Settlement {
	return pgtest.Settlement(claim, func(e outbox.Claimed) bool { return slices.Contains(strings.Fields(refused), nameOf(e)) })
}

// due makes a blocked aggregate due now.
func (l *letters) due(name string) {
	l.t.Helper()
	execute(l.t, l.pool, "UPDATE video_catalog.outbox_blocked SET next_retry_at = now() WHERE aggregate_id = '"+l.letter(name).ID+"'")
}

// endLeases ends all leases, as time does.
func (l *letters) endLeases() {
	l.t.Helper()
	execute(l.t, l.pool, "UPDATE video_catalog.outbox_lanes SET leased_until = clock_timestamp()")
}

// left returns how many events are pending or deferred.
func (l *letters) left() int {
	l.t.Helper()
	return count(l.t, l.pool, "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)")
}

// dump returns all rows that a claim or a settlement can change.
func (l *letters) dump() []string {
	l.t.Helper()
	return column(l.t, l.pool, `
		SELECT p::text FROM video_catalog.outbox_pending p UNION ALL SELECT n::text FROM video_catalog.outbox_lanes n
		UNION ALL SELECT d::text FROM video_catalog.outbox_deferred d
		UNION ALL SELECT b::text FROM video_catalog.outbox_blocked b ORDER BY 1`)
}

// begin begins a transaction, which is rolled back at the end of the test.
func (l *letters) begin() pgx.Tx {
	l.t.Helper()
	tx, err := l.pool.Begin(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { rollback(tx) })
	return tx
}

// operator is the audit entry of an operator's action.
var operator = pg.Entry{Actor: pg.Actor{Name: "ann@desk", Via: "command"}, Action: "test", Filter: []byte("{}"), Reason: "test"}
