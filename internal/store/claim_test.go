package store

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
	"example.com/videocatalog/internal/store/storetest"
)

// A claim reads of its rows what sqlc's code reads of them.
func TestClaimReadsWhatSqlcReads(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 1)
	if _, err := pool.Exec(t.Context(), `
		INSERT INTO video.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent)
		SELECT 3, gen_random_uuid(), 'type ' || n / 10, 'ü ' || n / 3, 'e ' || n % 2, (n - 500) * 10000000000, (n - 500) * 1000000,
			decode(repeat(md5(n::text), n % 200), 'hex'), timestamptz '1999-12-31 23:59:59.9+00' + n * interval '1001 us', CASE n % 3 WHEN 0 THEN 'trace ' || n END
		FROM generate_series(1, 1000) n;
		INSERT INTO video.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT -1, gen_random_uuid(), 'aside', 'ü', '', 1, 1, 'x', '0001-01-01 00:00:00.000001+00';
		INSERT INTO video.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, next_retry_at, last_error) VALUES
			('aside', 'ü', 3, 70000, now(), ''), ('type 9', 'ü 33', 3, 1, NULL, ''), ('recovered', 'r', 3, 1, now(), '')`); err != nil {
		t.Fatal(err)
	}
	const all, noLease = 2000, 0
	rows, err := sqlcgen.New(pool).ClaimOutbox(t.Context(), sqlcgen.ClaimOutboxParams{MaxEvents: all, MaxBytes: 1 << 30, LeaseFor: noLease, Token: 1})
	if err != nil {
		t.Fatal(err)
	}
	want := event.Claim{Lane: 3}
	for _, row := range rows {
		e := event.Claimed{Message: envelope.Message{
			ID: row.ID, AggregateType: row.AggregateType, AggregateID: row.AggregateID, Type: row.EventType, Version: row.Version, SchemaVersion: row.SchemaVersion,
			Payload: row.Payload, OccurredAt: row.OccurredAt.UTC(), Traceparent: row.Traceparent,
		}, Seq: row.Seq, Retry: row.Retry, Blocked: row.Blocked, Attempts: int(row.Attempts)}
		if e.Seq == 0 {
			want.Recovered = append(want.Recovered, e.Aggregate())
		} else {
			want.Events = append(want.Events, e)
		}
	}
	got, err := NewVideos(pool, nil).ClaimEvents(t.Context(), all, 1<<30, noLease, envelope.Aggregate{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Token == 0 || len(got.Events) != 1001 || len(got.Recovered) != 1 {
		t.Errorf("a claim with token %d, %d events and %v recovered, want 1001 events and one", got.Token, len(got.Events), got.Recovered)
	}
	bySeq := cmpopts.SortSlices(func(a, b event.Claimed) bool { return a.Seq < b.Seq })
	if diff := cmp.Diff(want, got, bySeq, cmpopts.IgnoreFields(event.Claim{}, "Token"), cmp.Comparer(func(a, b time.Time) bool { return a == b })); diff != "" {
		t.Errorf("claim (-sqlc +store):\n%s", diff)
	}
}

// A claim that fails after its first row is an error, as is one that returns
// other columns; neither is a smaller claim.
func TestClaimFailsWhole(t *testing.T) {
	t.Parallel()
	const columns = "3::smallint, 7::bigint, n, false, false, 0, gen_random_uuid(), 'a', 'b', 1::bigint, 'c', 1, ''::bytea, now(), ''"
	for sql, want := range map[string]string{
		"SELECT " + columns + " FROM (SELECT 2 / (2 - n) FROM generate_series(1::bigint, 2) n) n (n)": "division by zero",
		"SELECT " + columns + " FROM (VALUES (1::bigint), (NULL)) n (n)":                              "NULL",
		"SELECT " + columns + ", 0 FROM (VALUES (1::bigint)) n (n)":                                   "more columns",
	} {
		rows, err := storetest.Pool(t, 1).Query(t.Context(), sql, pgx.QueryResultFormats{pgx.BinaryFormatCode})
		if err != nil {
			t.Fatal(err)
		}
		if claim, err := readClaim(rows); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: claim %+v, %v, want an error about %q", sql, claim, err, want)
		}
	}
}

// Of claims without an answer the newest are remembered; one that PostgreSQL
// has refused is none of them.
func TestLostClaimsAreFew(t *testing.T) {
	t.Parallel()
	videos := NewVideos(storetest.Pool(t, 1), nil)
	if tokens := videos.lost.list(); tokens == nil || len(tokens) > 0 {
		t.Errorf("lost at first: %#v, want empty, not nil", tokens)
	}
	for token := range int64(3 * maxLost) {
		videos.lost.add(token + 1)
	}
	want := videos.lost.list()
	if len(want) != maxLost || want[0] != 2*maxLost+1 || want[maxLost-1] != 3*maxLost {
		t.Errorf("lost: %v, want the newest %d of %d", want, maxLost, 3*maxLost)
	}
	const negative = -1 // which LIMIT refuses
	if _, err := videos.pool.Exec(t.Context(), `
		INSERT INTO video.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		VALUES (3, gen_random_uuid(), 'a', 'b', 'c', 1, 1, '', now())`); err != nil {
		t.Fatal(err)
	}
	if _, err := videos.ClaimEvents(t.Context(), negative, 1, time.Hour, envelope.Aggregate{}); err == nil {
		t.Error("ClaimEvents() of a negative number of events = nil, want an error")
	}
	if got := videos.lost.list(); !slices.Equal(got, want) {
		t.Errorf("lost after a refusal: %v, want as before", got)
	}
}

// A column that is not what a claim returns is an error, never a panic.
func TestBinaryRowRefusesOtherColumns(t *testing.T) {
	t.Parallel()
	infinity, minusInfinity := []byte("\x7f\xff\xff\xff\xff\xff\xff\xff"), []byte("\x80\x00\x00\x00\x00\x00\x00\x00")
	kinds := map[string]func(*binaryRow){
		"bool": func(r *binaryRow) { r.bool() }, "int16": func(r *binaryRow) { r.int16() }, "int32": func(r *binaryRow) { r.int32() },
		"int64": func(r *binaryRow) { r.int64() }, "uuid": func(r *binaryRow) { r.uuid() }, "time": func(r *binaryRow) { r.time() },
		"text": func(r *binaryRow) { r.text("") }, "bytes": func(r *binaryRow) { r.bytes() },
	}
	for kind, read := range kinds {
		columns := map[string][][]byte{"missing": {}, "NULL": {nil}, "empty": {{}}, "too long": {make([]byte, 17)}}
		switch kind {
		case "text", "bytes":
			delete(columns, "empty")
			delete(columns, "too long")
		case "time":
			columns["infinite"], columns["minus infinite"] = [][]byte{infinity}, [][]byte{minusInfinity}
		}
		for name, values := range columns {
			row := binaryRow{values: values}
			if read(&row); row.err == nil {
				t.Errorf("a %s that is %s: no error", kind, name)
			}
		}
	}
}
