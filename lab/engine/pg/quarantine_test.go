package pg_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// quarantined returns a message as the projector quarantines it.
func quarantined(id string) envelope.Quarantined {
	return envelope.Quarantined{
		MessageID: id, OrderingKey: "01890a5d-ac96-7a01-8b02-0c0d0e0f1011",
		Attributes: map[string]string{envelope.AttrSchemaVersion: "2", envelope.AttrEventType: "SomethingHappened"},
		Payload:    []byte{0, 1, 0xff, '\\'},
		Reason:     `decode event: schema version 2 is newer than 1`, PublishTime: epoch,
	}
}

// ignoreReceived leaves out what the database adds to a message.
var ignoreReceived = cmpopts.IgnoreFields(pg.Quarantined{}, "ID", "ReceivedAt", "Cause", "Consumer")

// listWhole returns the messages of one consumer with their payloads.
func listWhole(t *testing.T, inbox *pg.Inbox, consumer string) ([]pg.Quarantined, error) {
	t.Helper()
	all, _, err := inbox.ListQuarantine(t.Context(), pg.Filter{}, 10_000)
	if err != nil {
		return nil, err
	}
	found := []pg.Quarantined{}
	for _, m := range all {
		if m.Consumer != consumer {
			continue
		}
		if m.Payload, err = inbox.QuarantinedPayload(t.Context(), m.ID); err != nil {
			return nil, err
		}
		found = append(found, m)
	}
	return found, nil
}

// discard deletes a message, as an operator would.
func discard(t *testing.T, inbox *pg.Inbox, id int64) error {
	t.Helper()
	_, err := inbox.DeleteQuarantine(t.Context(), []int64{id}, operator)
	return err
}

// A message comes out of the quarantine as it went in, whatever is in it: one
// that could not be quarantined would block its key.
func TestQuarantineKeepsAnyMessage(t *testing.T) {
	t.Parallel()
	inbox := pg.NewInbox(pgtest.Pool(t, 2))
	with := func(change func(*envelope.Quarantined)) envelope.Quarantined {
		m := quarantined("")
		change(&m)
		return m
	}
	everything := "\x00 \\ \\x00 \\u0000 \" ' {} \xff\xfe \xed\xa0\x80 \ufffd \u2028 🎬 $1 \x1b%s"
	for i, want := range []envelope.Quarantined{
		quarantined(""),
		{Attributes: map[string]string{}, Payload: []byte{}},
		with(func(m *envelope.Quarantined) {
			m.Attributes = map[string]string{"a\x00b": "c\x00d", "a\\x00b": "\x00", "": ""}
		}),
		with(func(m *envelope.Quarantined) {
			m.Attributes = map[string]string{everything: everything, "\xff": "\xff", "\xfe": "\xfe"}
		}),
		with(func(m *envelope.Quarantined) { m.Reason = everything }),
		with(func(m *envelope.Quarantined) { m.OrderingKey = everything }),
		with(func(m *envelope.Quarantined) { m.Payload = []byte(strings.Repeat(everything, 100)) }),
		with(func(m *envelope.Quarantined) { m.Reason = strings.Repeat(everything, 1_000) }),
		with(func(m *envelope.Quarantined) {
			m.PublishTime = time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
		}),
	} {
		want.MessageID += fmt.Sprint(i)
		if i == 5 {
			want.MessageID += everything
		}
		before := time.Now().Add(-time.Second)
		consumer := fmt.Sprint("consumer", i)
		if err := inbox.Quarantine(t.Context(), consumer, want); err != nil {
			t.Errorf("Quarantine() of message %d = %v", i, err)
			continue
		}
		got, err := listWhole(t, inbox, consumer)
		if err != nil {
			t.Fatalf("ListQuarantine() = %v", err)
		}
		if diff := cmp.Diff([]pg.Quarantined{{Quarantined: want}}, got, ignoreReceived); diff != "" {
			t.Errorf("message %d (-quarantined +listed):\n%s", i, diff)
			continue
		}
		if got[0].ReceivedAt.Before(before) || got[0].ReceivedAt.After(time.Now().Add(time.Second)) {
			t.Errorf("message %d was received at %s, want now", i, got[0].ReceivedAt)
		}
	}
}

// A person reads ordinary attributes in the table as they are, and can ask for
// them by name.
func TestQuarantineIsReadableInSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	m := quarantined("1")
	m.Attributes["odd"] = "a\x00b"
	must(t, pg.NewInbox(pool).Quarantine(t.Context(), "consumer", m))
	for attribute, want := range map[string]string{"schema_version": "2", "event_type": "SomethingHappened", "odd": `a\x00b`} {
		var got string
		if err := pool.QueryRow(t.Context(), "SELECT attributes ->> $1 FROM video_catalog_read.quarantine", attribute).Scan(&got); err != nil || got != want {
			t.Errorf("attribute %s = %q, %v, want %q, nil", attribute, got, err, want)
		}
	}
}

// A message that comes again, also at the same time, is quarantined once per
// consumer: the first stored row stays.
func TestQuarantineKeepsAMessageOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 8)
	inbox := pg.NewInbox(pool)
	first := quarantined("1")
	must(t, inbox.Quarantine(t.Context(), "consumer", first))
	again := quarantined("1")
	again.Reason = "another one"
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := inbox.Quarantine(t.Context(), "consumer", again); err != nil {
				t.Errorf("Quarantine() again = %v", err)
			}
		})
		wg.Go(func() {
			if err := inbox.Quarantine(t.Context(), "other", again); err != nil {
				t.Errorf("Quarantine() for another consumer = %v", err)
			}
		})
	}
	wg.Wait()
	for consumer, want := range map[string]envelope.Quarantined{"consumer": first, "other": again, "third": {}} {
		got, err := listWhole(t, inbox, consumer)
		must(t, err)
		wantRows := []pg.Quarantined{{Quarantined: want}}
		if consumer == "third" {
			wantRows = []pg.Quarantined{}
		}
		same(t, fmt.Sprintf("quarantine of %s", consumer), wantRows, got, ignoreReceived)
	}
}

// The quarantine is listed in the order of arrival, up to a limit. A message can be deleted once.
func TestQuarantineIsListedAndEmptied(t *testing.T) {
	t.Parallel()
	inbox := pg.NewInbox(pgtest.Pool(t, 2))
	var want []string
	for i := range 7 {
		want = append(want, fmt.Sprint(i))
		must(t, inbox.Quarantine(t.Context(), "consumer", quarantined(want[i])))
	}
	if some, total, err := inbox.ListQuarantine(t.Context(), pg.Filter{}, 3); len(some) != 3 || some[0].MessageID != "0" || total != 7 || err != nil {
		t.Errorf("ListQuarantine(3) = %+v of %d, %v, want the first 3 of 7", some, total, err)
	}
	for filter, matching := range map[pg.Filter]int64{
		{Cause: "newer than"}: 7, {Cause: "older"}: 0, {ID: "4"}: 1, {ID: "8"}: 0, {Type: "x"}: 0, {Aggregate: "x"}: 0,
	} {
		if _, total, err := inbox.ListQuarantine(t.Context(), filter, 1); total != matching || err != nil {
			t.Errorf("%+v matches %d messages, %v, want %d", filter, total, err, matching)
		}
	}
	rows, err := listWhole(t, inbox, "consumer")
	must(t, err)
	var got []string
	for _, row := range rows {
		got = append(got, row.MessageID)
		for _, want := range []int64{1, 0} {
			if n, err := inbox.DeleteQuarantine(t.Context(), []int64{row.ID}, operator); n != want || err != nil {
				t.Errorf("DeleteQuarantine(%d) = %d, %v, want %d", row.ID, n, err, want)
			}
		}
	}
	same(t, "messages", want, got)
	if rest, err := listWhole(t, inbox, "consumer"); len(rest) != 0 || err != nil {
		t.Errorf("quarantine = %d messages, %v, want none", len(rest), err)
	}
}
