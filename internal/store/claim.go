package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// ClaimEvents takes the lease of a lane that has work, until leaseFor from
// now by the clock of the database, and returns its oldest events: at most
// maxEvents, and none behind the one with which their payloads have maxBytes.
// As much again of what was set aside and is due.
// The zero Claim: there is nothing to do.
//
// With an aggregate (not the zero one) it takes the lane of that or none, and
// none when nothing was committed there since its last claims. That costs
// half, and is for who knows of a commit: what is due for a retry, and
// what was committed later than what is behind it, may wait for a claim without.
//
// A claim that fails without a word from PostgreSQL may have been made, or be
// made later. What it holds, or will, later claims of the same Videos take as
// if it were free.
func (s *Videos) ClaimEvents(ctx context.Context, maxEvents int, maxBytes int64, leaseFor time.Duration, of envelope.Aggregate) (event.Claim, error) {
	conn, err := acquire(ctx, s.pool)
	if err != nil {
		return event.Claim{}, wrap(err, "claim events")
	}
	defer conn.Release()
	token := 1 + rand.Int64N(math.MaxInt64) // why at random: see video.outbox_claim
	rows, err := conn.Query(ctx, sqlcgen.ClaimOutbox, pgx.QueryResultFormats{pgx.BinaryFormatCode}, limit(maxEvents), maxBytes, leaseFor, optional(of.Type), optional(of.ID), token, s.lost.list())
	var claim event.Claim
	if err == nil {
		claim, err = readClaim(rows)
	}
	if err != nil {
		if !isRefused(err) {
			s.lost.add(token)
		}
		return event.Claim{}, wrap(err, "claim events")
	}
	// Here, because sorting rows with their payloads costs the database more.
	slices.SortFunc(claim.Events, func(a, b event.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	unblock(&claim, maxEvents, maxBytes)
	return claim, nil
}

// unblock lets the events of a lane follow those of their aggregate that were
// set aside, when the claim has all of those. Else an aggregate that never rests
// would stay blocked. The claim may lack some when it is full, and always does
// of an aggregate with attempts, of which it has one event.
func unblock(claim *event.Claim, maxEvents int, maxBytes int64) {
	whole := make(map[envelope.Aggregate]bool)
	rows, bytes := len(claim.Recovered), int64(0)
	for _, aggregate := range claim.Recovered {
		whole[aggregate] = true
	}
	for _, e := range claim.Events {
		if e.Retry {
			whole[e.Aggregate()] = e.Attempts == 0
			rows++
			bytes += int64(len(e.Payload))
		}
	}
	if rows == 0 || rows >= maxEvents || bytes >= maxBytes {
		return
	}
	for i := range claim.Events {
		e := &claim.Events[i]
		e.Blocked = e.Blocked && !whole[e.Aggregate()]
	}
}

// readClaim reads the rows of a claim from their binary form. Every event ever
// published comes this way, and the code of sqlc, which makes each row twice,
// costs the publisher a fifth more.
func readClaim(rows pgx.Rows) (claim event.Claim, err error) {
	defer rows.Close()
	for rows.Next() {
		if claim.Token == 0 && slices.ContainsFunc(rows.FieldDescriptions(), isText) {
			return event.Claim{}, errors.New("the connection answers text: its URL must not ask for the exec mode simple_protocol or exec")
		}
		row := binaryRow{values: rows.RawValues()}
		claim.Lane, claim.Token = row.int16(), row.int64()
		e := event.Claimed{Seq: row.int64(), Retry: row.bool(), Blocked: row.bool(), Attempts: int(row.int32())}
		last := &e
		if n := len(claim.Events); n > 0 {
			last = &claim.Events[n-1]
		}
		e.ID, e.AggregateType, e.AggregateID = row.uuid(), row.text(last.AggregateType), row.text(last.AggregateID)
		e.Version, e.Type, e.SchemaVersion = row.int64(), row.text(last.Type), row.int32()
		e.Payload, e.OccurredAt, e.Traceparent = row.bytes(), row.time(), row.text("")
		switch {
		case row.err != nil:
			return event.Claim{}, row.err
		case len(row.values) > 0:
			return event.Claim{}, errors.New("a claim has more columns than are read")
		case e.Seq != 0:
			claim.Events = append(claim.Events, e)
		case e.AggregateID != "":
			claim.Recovered = append(claim.Recovered, e.Aggregate())
		}
	}
	return claim, rows.Err()
}

func isText(column pgconn.FieldDescription) bool { return column.Format != pgx.BinaryFormatCode }

// binaryRow reads the columns of a row one after the other
// (https://www.postgresql.org/docs/current/protocol-message-formats.html).
type binaryRow struct {
	values [][]byte
	err    error
}

// next returns the next column, which is never NULL.
func (r *binaryRow) next() (value []byte) {
	if len(r.values) > 0 {
		value, r.values = r.values[0], r.values[1:]
	}
	if value == nil {
		r.err = errors.New("a column of a claim is missing or NULL")
	}
	return value
}

// fixed returns the next column, which must have that size.
func (r *binaryRow) fixed(size int) []byte {
	value := r.next()
	if len(value) == size {
		return value
	}
	if value != nil {
		r.err = fmt.Errorf("a column of a claim has %d bytes, want %d", len(value), size)
	}
	return make([]byte, size)
}

func (r *binaryRow) bool() bool      { return r.fixed(1)[0] != 0 }
func (r *binaryRow) int16() int16    { return int16(binary.BigEndian.Uint16(r.fixed(2))) } //nolint:gosec // two's complement
func (r *binaryRow) int32() int32    { return int32(binary.BigEndian.Uint32(r.fixed(4))) } //nolint:gosec // the same
func (r *binaryRow) int64() int64    { return int64(binary.BigEndian.Uint64(r.fixed(8))) } //nolint:gosec // the same
func (r *binaryRow) uuid() uuid.UUID { return uuid.UUID(r.fixed(16)) }
func (r *binaryRow) bytes() []byte   { return bytes.Clone(r.next()) }

// text is like, where it can be, the same text of the row before: types hardly
// ever change, so they are not copied.
func (r *binaryRow) text(like string) string {
	if value := r.next(); string(value) != like {
		return string(value)
	}
	return like
}

// time is in microseconds since 2000; the least and the most are the infinities.
func (r *binaryRow) time() time.Time {
	since := r.int64()
	if since == math.MinInt64 || since == math.MaxInt64 {
		r.err = errors.New("a time of a claim is infinite")
	}
	return time.UnixMicro(microsecondsTo2000 + since).UTC()
}

var microsecondsTo2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
