package pg_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// rows are a projection in memory, whose events are rows.
type rows struct {
	found   map[uuid.UUID]consumer.Row
	written []uuid.UUID // in this order
	err     error       // of a write
}

func (*rows) Row(event consumer.Row) consumer.Row { return event }

func (r *rows) Read(_ context.Context, _ *pg.Tx, aggregates []uuid.UUID) (found []consumer.Row, err error) {
	for _, id := range aggregates {
		if row, ok := r.found[id]; ok {
			found = append(found, row)
		}
	}
	return found, nil
}

func (r *rows) Write(_ context.Context, _ *pg.Tx, event consumer.Row) error {
	if r.err == nil {
		r.written = append(r.written, event.Aggregate)
		r.found[event.Aggregate] = event
	}
	return r.err
}

// Of a batch, the newest event of each aggregate is written, in the order of the aggregates. Each
// event has its outcome. If a write fails, no event of the batch counts.
func TestProject(t *testing.T) {
	t.Parallel()
	inbox := pg.NewInbox(pgtest.Pool(t, 2))
	first, second := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	to := &rows{found: make(map[uuid.UUID]consumer.Row)}
	row := func(aggregate uuid.UUID, version int64) consumer.Row {
		return consumer.Row{Aggregate: aggregate, Event: uuid.Must(uuid.NewV7()), Version: version}
	}
	next := row(second, 1)
	for _, step := range []struct {
		name   string
		events []consumer.Row
		want   []envelope.Outcome
		order  []uuid.UUID
	}{
		{"one batch", []consumer.Row{next, row(first, 1), next, row(first, 3), row(first, 2)},
			[]envelope.Outcome{envelope.Applied, envelope.Applied, envelope.Duplicate, envelope.AppliedAfterGap, envelope.Stale}, []uuid.UUID{first, second}},
		{"the same again", []consumer.Row{next}, []envelope.Outcome{envelope.Duplicate}, nil},
		{"another event with the same version", []consumer.Row{row(second, 1)}, []envelope.Outcome{envelope.Conflict}, []uuid.UUID{second}},
		{"an older version", []consumer.Row{row(first, 2)}, []envelope.Outcome{envelope.Stale}, nil},
	} {
		to.written = nil
		got, err := pg.Project(t.Context(), inbox, "test", step.events, to)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, got); diff != "" || !slices.Equal(to.written, step.order) {
			t.Errorf("%s: written in the order %v, want %v; outcomes (-want +got):\n%s", step.name, to.written, step.order, diff)
		}
	}

	late := row(first, 4)
	to.err = errors.New("refused")
	if _, err := pg.Project(t.Context(), inbox, "test", []consumer.Row{late}, to); err == nil {
		t.Error("Project() succeeds although a row was refused")
	}
	to.err = nil
	if got, err := pg.Project(t.Context(), inbox, "test", []consumer.Row{late}, to); err != nil || got[0] == envelope.Duplicate {
		t.Errorf("Project() after a failure = %v, %v, want the event to be new", got, err)
	}
}
