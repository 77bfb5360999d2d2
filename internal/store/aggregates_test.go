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

// The events of a batch are applied in the order of their aggregates, each once, and their
// outcomes belong to them. If one fails, none counts.
func TestProjectRows(t *testing.T) {
	t.Parallel()
	inbox := store.NewInbox(storetest.Pool(t, 2))
	first, second := newID(t), newID(t)
	rows := make(map[uuid.UUID]store.Row)
	var order []uuid.UUID
	write := func(r store.Row) (store.Row, error) {
		order = append(order, r.Aggregate)
		before := rows[r.Aggregate]
		rows[r.Aggregate] = r
		return before, nil
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
		{"one batch", []store.Row{next, row(first, 1), next, row(first, 3)},
			[]envelope.Outcome{envelope.Applied, envelope.Applied, envelope.Duplicate, envelope.AppliedAfterGap}, []uuid.UUID{first, first, second}},
		{"the same again", []store.Row{next}, []envelope.Outcome{envelope.Duplicate}, nil},
		{"another event with the same version", []store.Row{row(second, 1)}, []envelope.Outcome{envelope.Conflict}, []uuid.UUID{second}},
		{"an older version", []store.Row{row(first, 2)}, []envelope.Outcome{envelope.Stale}, []uuid.UUID{first}},
	} {
		order = nil
		got, err := store.ProjectRows(t.Context(), inbox, "test", step.events, write)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, got); diff != "" || !slices.Equal(order, step.order) {
			t.Errorf("%s: written in the order %v, want %v; outcomes (-want +got):\n%s", step.name, order, step.order, diff)
		}
	}

	late := row(first, 4)
	fails := func(store.Row) (store.Row, error) { return store.Row{}, errors.New("refused") }
	if _, err := store.ProjectRows(t.Context(), inbox, "test", []store.Row{late}, fails); err == nil {
		t.Error("ProjectRows() succeeds although a row was refused")
	}
	if got, err := store.ProjectRows(t.Context(), inbox, "test", []store.Row{late}, write); err != nil || got[0] == envelope.Duplicate {
		t.Errorf("ProjectRows() after a failure = %v, %v, want the event to be new", got, err)
	}
}
