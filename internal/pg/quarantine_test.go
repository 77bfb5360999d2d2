package pg_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// quarantined returns a message as the projector quarantines one.
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

// A message that comes again, also at the same time, is quarantined once per
// consumer: the first stored row stays.
func TestQuarantineKeepsAMessageOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 8)
	inbox := pg.NewInbox(pool)
	first := quarantined("1")
	if err := inbox.Quarantine(t.Context(), "consumer", first); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		wantRows := []pg.Quarantined{{Quarantined: want}}
		if consumer == "third" {
			wantRows = []pg.Quarantined{}
		}
		if diff := cmp.Diff(wantRows, got, ignoreReceived); diff != "" {
			t.Errorf("quarantine of %s (-want +got):\n%s", consumer, diff)
		}
	}
}

// The quarantine is listed in the order of arrival, up to a limit. A message can be deleted once.
func TestQuarantineIsListedAndEmptied(t *testing.T) {
	t.Parallel()
	inbox := pg.NewInbox(pgtest.Pool(t, 2))
	var want []string
	for i := range 7 {
		want = append(want, fmt.Sprint(i))
		if err := inbox.Quarantine(t.Context(), "consumer", quarantined(want[i])); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range rows {
		got = append(got, row.MessageID)
		for _, want := range []int64{1, 0} {
			if n, err := inbox.DeleteQuarantine(t.Context(), []int64{row.ID}, operator); n != want || err != nil {
				t.Errorf("DeleteQuarantine(%d) = %d, %v, want %d", row.ID, n, err, want)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if rest, err := listWhole(t, inbox, "consumer"); len(rest) != 0 || err != nil {
		t.Errorf("quarantine = %d messages, %v, want none", len(rest), err)
	}
}
