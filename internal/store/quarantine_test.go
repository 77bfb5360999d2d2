package store_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// quarantined is a message as the projector sets one aside.
func quarantined(id string) envelope.Quarantined {
	return envelope.Quarantined{
		MessageID: id, OrderingKey: "01890a5d-ac96-7a01-8b02-0c0d0e0f1011",
		Attributes: map[string]string{envelope.AttrSchemaVersion: "2", envelope.AttrEventType: "SomethingHappened"},
		Payload:    []byte{0, 1, 0xff, '\\'},
		Reason:     `decode event: schema version 2 is newer than 1`, PublishTime: epoch,
	}
}

// ignoreReceived leaves out what the database adds to a message.
var ignoreReceived = cmpopts.IgnoreFields(admin.Quarantined{}, "ID", "ReceivedAt", "Cause", "Consumer")

// listWhole returns the messages of one consumer with their payloads.
func listWhole(t *testing.T, inbox *store.Inbox, consumer string, after int64, maxRows int) ([]admin.Quarantined, error) {
	t.Helper()
	all, err := inbox.ListQuarantine(t.Context(), admin.Filter{}, after, 10_000)
	if err != nil {
		return nil, err
	}
	found := []admin.Quarantined{}
	for _, m := range all {
		if m.Consumer != consumer || len(found) == maxRows {
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
func discard(t *testing.T, inbox *store.Inbox, id int64) error {
	t.Helper()
	_, err := admin.Delete(t.Context(), inbox, admin.Request{
		Filter: admin.Filter{ID: strconv.FormatInt(id, 10)}, Reason: "test", Actor: admin.Actor{Name: "ann@desk", Via: "command"},
	})
	return err
}

// A message that comes again, also at the same time, is set aside once per
// consumer; what was stored first stays.
func TestQuarantineKeepsAMessageOnce(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 8)
	inbox := store.NewInbox(pool)
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
		got, err := listWhole(t, inbox, consumer, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		wantRows := []admin.Quarantined{{Quarantined: want}}
		if consumer == "third" {
			wantRows = []admin.Quarantined{}
		}
		if diff := cmp.Diff(wantRows, got, ignoreReceived); diff != "" {
			t.Errorf("quarantine of %s (-want +got):\n%s", consumer, diff)
		}
	}
}

// The quarantine is listed page by page in the order of arrival, and a message
// can be deleted once.
func TestQuarantineIsListedAndEmptied(t *testing.T) {
	t.Parallel()
	inbox := store.NewInbox(storetest.Pool(t, 2))
	for i := range 7 {
		if err := inbox.Quarantine(t.Context(), "consumer", quarantined(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		if err := inbox.Quarantine(t.Context(), "other", quarantined(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	var after int64
	var rows []admin.Quarantined
	for len(rows) <= 7 {
		page, err := listWhole(t, inbox, "consumer", after, 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		rows = append(rows, page...)
		after = page[len(page)-1].ID
	}
	var got []string
	for _, row := range rows {
		got = append(got, row.MessageID)
		if err := discard(t, inbox, row.ID); err != nil {
			t.Errorf("DeleteQuarantine(%d) = %v", row.ID, err)
		}
		if err := discard(t, inbox, row.ID); kindOf(err) != problem.NotFound {
			t.Errorf("DeleteQuarantine(%d) again = %v, want NotFound", row.ID, err)
		}
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4", "5", "6"}, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if rest, err := listWhole(t, inbox, "consumer", 0, 10); len(rest) != 0 || err != nil {
		t.Errorf("quarantine = %d messages, %v, want none", len(rest), err)
	}
	if rest, err := listWhole(t, inbox, "other", 0, 10); len(rest) != 7 || err != nil {
		t.Errorf("quarantine of the other consumer = %d messages, %v, want 7, nil", len(rest), err)
	}
}
