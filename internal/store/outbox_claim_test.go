package store

import (
	"slices"
	"testing"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store/storetest"
)

// Of claims without an answer the newest are remembered; one that PostgreSQL
// has refused is none of them.
func TestLostClaimsAreFew(t *testing.T) {
	t.Parallel()
	events := NewOutbox(storetest.Pool(t, 1))
	if tokens := events.lost.list(); tokens == nil || len(tokens) > 0 {
		t.Errorf("lost at first: %#v, want empty, not nil", tokens)
	}
	for token := range int64(3 * maxLost) {
		events.lost.add(token + 1)
	}
	want := events.lost.list()
	if len(want) != maxLost || want[0] != 2*maxLost+1 || want[maxLost-1] != 3*maxLost {
		t.Errorf("lost: %v, want the newest %d of %d", want, maxLost, 3*maxLost)
	}
	const negative = -1 // which LIMIT refuses
	if _, err := events.pool.Exec(t.Context(), `
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		VALUES (3, gen_random_uuid(), 'a', 'b', 'c', 1, 1, '', now())`); err != nil {
		t.Fatal(err)
	}
	if _, err := events.ClaimEvents(t.Context(), negative, 1, time.Hour, envelope.Aggregate{}); err == nil {
		t.Error("ClaimEvents() of a negative number of events = nil, want an error")
	}
	if got := events.lost.list(); !slices.Equal(got, want) {
		t.Errorf("lost after a refusal: %v, want as before", got)
	}
}
