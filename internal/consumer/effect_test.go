package consumer_test

import (
	"testing"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
)

// Only a newer event changes a row. The outcome reports a gap before it.
func TestEffectOfAnEvent(t *testing.T) {
	t.Parallel()
	earlier, later, snapshot := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7()), uuid.MustParse("00000000-0000-8000-8000-000000000001")
	at := func(version int64, event uuid.UUID) consumer.Row { return consumer.Row{Event: event, Version: version} }
	purge := func(r consumer.Row) consumer.Row {
		r.Purged = true
		return r
	}
	for _, test := range []struct {
		name          string
		before, event consumer.Row
		want          envelope.Outcome
		newer         bool
	}{
		{"the first event", consumer.Row{}, at(1, later), envelope.Applied, true},
		{"the next event", at(3, earlier), at(4, later), envelope.Applied, true},
		{"nothing seen, but not the first", consumer.Row{}, at(2, later), envelope.AppliedAfterGap, true},
		{"one missing", at(3, earlier), at(5, later), envelope.AppliedAfterGap, true},
		{"the same event", at(3, earlier), at(3, earlier), envelope.Stale, false},
		{"the same version after a repair", at(3, uuid.Nil), at(3, later), envelope.Stale, false},
		{"the same version of a later event", at(3, earlier), at(3, later), envelope.Conflict, true},
		{"the same version of an earlier event", at(3, later), at(3, earlier), envelope.Conflict, false},
		{"an older version", at(3, earlier), at(2, later), envelope.Stale, false},
		{"a purge that has erased events before it", at(1, earlier), purge(at(5, later)), envelope.Applied, true},
		{"a first snapshot", consumer.Row{}, at(5, snapshot), envelope.Applied, true},
		{"a snapshot of what was missed", at(3, earlier), at(5, snapshot), envelope.Applied, true},
		{"a snapshot of the same version", at(3, earlier), at(3, snapshot), envelope.Stale, false},
		{"a snapshot of an older version", at(3, earlier), at(2, snapshot), envelope.Stale, false},
		{"the event of a snapshot", at(3, snapshot), at(3, later), envelope.Stale, false},
		{"the event behind a snapshot", at(3, snapshot), at(4, later), envelope.Applied, true},
		{"one missing behind a snapshot", at(3, snapshot), at(5, later), envelope.AppliedAfterGap, true},
	} {
		if got, newer := consumer.EffectOf(test.before, test.event); got != test.want || newer != test.newer {
			t.Errorf("%s: effect = %s, newer %t, want %s, %t", test.name, got, newer, test.want, test.newer)
		}
	}
}
