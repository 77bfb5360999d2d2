package store_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// A projection of any aggregate type treats a snapshot as Fold does.
func TestProjectRowsTakesSnapshots(t *testing.T) {
	t.Parallel()
	inbox := store.NewInbox(storetest.Pool(t, 2))
	aggregate, first, second := newID(t), newID(t), newID(t)
	snapshot := func(n byte) uuid.UUID { return domain.SnapshotID([10]byte{n}) }
	var row store.Row
	for _, step := range []struct {
		event   uuid.UUID
		version int64
		want    envelope.Outcome
	}{
		{snapshot(1), 5, envelope.Applied},
		{first, 5, envelope.Stale},
		{snapshot(2), 5, envelope.Stale},
		{snapshot(3), 4, envelope.Stale},
		{second, 6, envelope.Applied},
		{snapshot(4), 6, envelope.Stale},
		{snapshot(5), 9, envelope.Applied},
		{newID(t), 11, envelope.AppliedAfterGap},
	} {
		e := store.Row{Aggregate: aggregate, Event: step.event, Version: step.version}
		got, err := store.ProjectRows(t.Context(), inbox, "test", []store.Row{e}, func(e store.Row) (store.Row, error) {
			before := row
			if e.Version > row.Version || e.Version == row.Version && bytes.Compare(e.Event[:], row.Event[:]) > 0 {
				row = e
			}
			return before, nil
		})
		if diff := cmp.Diff([]envelope.Outcome{step.want}, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("outcome of version %d by %s: %v (-want +got):\n%s", step.version, step.event, err, diff)
		}
	}
}
