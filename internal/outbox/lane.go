package outbox

import (
	"hash/fnv"

	"example.com/videocatalog/internal/envelope"
)

// Lanes is the number of lanes. A lane is a shard of the pending events: it has the events
// of a fixed share of all aggregates.
const Lanes = 8

// AnyLane stands for no lane in particular.
const AnyLane int16 = -1

// Lane returns the lane of an aggregate, from 0 to Lanes-1. It must never change while
// events are pending: an aggregate in two lanes would have two publishers, which may
// publish its events out of order. Drain the outbox before a version that changes it.
func Lane(a envelope.Aggregate) int16 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.Type + "/" + a.ID)) // a hash returns no error
	return int16(h.Sum64() & (Lanes - 1))
}
