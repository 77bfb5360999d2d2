package consumer

import (
	"bytes"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
)

// Row identifies a row of a projection, and the event and version that wrote it.
type Row struct {
	Aggregate, Event uuid.UUID // Event is zero if a repair wrote the row
	Version          int64
	Purged           bool // a purge erases events that are not published yet
}

// EffectOf returns the effect of an event on a row, and whether it is newer. Only a newer event
// changes the row. Two events with one version are a conflict: the owner lost a transaction in a
// failover after its event was published. The greater id wins, in any order of arrival. A
// snapshot stands for all events until its version: it leaves no gap, and is never a conflict.
func EffectOf(before, event Row) (outcome envelope.Outcome, newer bool) {
	switch {
	case event.Version > before.Version+1 && !event.Purged && !envelope.IsSnapshot(event.Event):
		return envelope.AppliedAfterGap, true
	case event.Version > before.Version:
		return envelope.Applied, true
	case event.Version < before.Version, before.Event == uuid.Nil, event.Event == before.Event,
		envelope.IsSnapshot(event.Event), envelope.IsSnapshot(before.Event):
		return envelope.Stale, false
	default:
		return envelope.Conflict, bytes.Compare(event.Event[:], before.Event[:]) > 0
	}
}
