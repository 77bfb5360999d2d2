package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// Of a batch, the newest event of each aggregate is written, in the order of the aggregates. Each
// event has its outcome. If a write fails, no event of the batch counts.
func TestProjectRows(t *testing.T) {
	t.Parallel()
	inbox := store.NewInbox(storetest.Pool(t, 2))
	first, second := newID(t), newID(t)
	rows := make(map[uuid.UUID]store.Row)
	var order []uuid.UUID
	read := func(id uuid.UUID) store.Row { return rows[id] }
	write := func(r store.Row) error {
		order = append(order, r.Aggregate)
		rows[r.Aggregate] = r
		return nil
	}
	row := func(aggregate uuid.UUID, version int64) store.Row {
		return store.Row{Aggregate: aggregate, Event: newID(t), Version: version}
	}
	next := row(second, 1)
	for _, step := range []struct {
		name   string
		events []store.Row
		want   []envelope.Outcome
		order  []uuid.UUID
	}{
		{"one batch", []store.Row{next, row(first, 1), next, row(first, 3), row(first, 2)},
			[]envelope.Outcome{envelope.Applied, envelope.Applied, envelope.Duplicate, envelope.AppliedAfterGap, envelope.Stale}, []uuid.UUID{first, second}},
		{"the same again", []store.Row{next}, []envelope.Outcome{envelope.Duplicate}, nil},
		{"another event with the same version", []store.Row{row(second, 1)}, []envelope.Outcome{envelope.Conflict}, []uuid.UUID{second}},
		{"an older version", []store.Row{row(first, 2)}, []envelope.Outcome{envelope.Stale}, nil},
	} {
		order = nil
		got, err := store.ProjectRows(t.Context(), inbox, "test", step.events, read, write)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, got); diff != "" || !slices.Equal(order, step.order) {
			t.Errorf("%s: written in the order %v, want %v; outcomes (-want +got):\n%s", step.name, order, step.order, diff)
		}
	}

	late := row(first, 4)
	fails := func(store.Row) error { return errors.New("refused") }
	if _, err := store.ProjectRows(t.Context(), inbox, "test", []store.Row{late}, read, fails); err == nil {
		t.Error("ProjectRows() succeeds although a row was refused")
	}
	if got, err := store.ProjectRows(t.Context(), inbox, "test", []store.Row{late}, read, write); err != nil || got[0] == envelope.Duplicate {
		t.Errorf("ProjectRows() after a failure = %v, %v, want the event to be new", got, err)
	}
}

// Only a newer event changes a row. The outcome reports a gap before it.
func TestEffectOfAnEvent(t *testing.T) {
	t.Parallel()
	earlier, later, snapshot := newID(t), newID(t), uuid.MustParse("00000000-0000-8000-8000-000000000001")
	at := func(version int64, event uuid.UUID) store.Row { return store.Row{Event: event, Version: version} }
	purge := func(r store.Row) store.Row {
		r.Purged = true
		return r
	}
	for _, test := range []struct {
		name          string
		before, event store.Row
		want          envelope.Outcome
		newer         bool
	}{
		{"the first event", store.Row{}, at(1, later), envelope.Applied, true},
		{"the next event", at(3, earlier), at(4, later), envelope.Applied, true},
		{"nothing seen, but not the first", store.Row{}, at(2, later), envelope.AppliedAfterGap, true},
		{"one missing", at(3, earlier), at(5, later), envelope.AppliedAfterGap, true},
		{"the same event", at(3, earlier), at(3, earlier), envelope.Stale, false},
		{"the same version after a repair", at(3, uuid.Nil), at(3, later), envelope.Stale, false},
		{"the same version of a later event", at(3, earlier), at(3, later), envelope.Conflict, true},
		{"the same version of an earlier event", at(3, later), at(3, earlier), envelope.Conflict, false},
		{"an older version", at(3, earlier), at(2, later), envelope.Stale, false},
		{"a purge that has erased events before it", at(1, earlier), purge(at(5, later)), envelope.Applied, true},
		{"a first snapshot", store.Row{}, at(5, snapshot), envelope.Applied, true},
		{"a snapshot of what was missed", at(3, earlier), at(5, snapshot), envelope.Applied, true},
		{"a snapshot of the same version", at(3, earlier), at(3, snapshot), envelope.Stale, false},
		{"a snapshot of an older version", at(3, earlier), at(2, snapshot), envelope.Stale, false},
		{"the event of a snapshot", at(3, snapshot), at(3, later), envelope.Stale, false},
		{"the event behind a snapshot", at(3, snapshot), at(4, later), envelope.Applied, true},
		{"one missing behind a snapshot", at(3, snapshot), at(5, later), envelope.AppliedAfterGap, true},
	} {
		if got, newer := store.EffectOf(test.before, test.event); got != test.want || newer != test.newer {
			t.Errorf("%s: effect = %s, newer %t, want %s, %t", test.name, got, newer, test.want, test.newer)
		}
	}
}
