package outbox

import "example.com/videocatalog/internal/envelope"

// Unblock lets pending events follow the deferred events of their aggregate, if the claim has
// all deferred events of the aggregate. Otherwise an aggregate with new events all the time
// would stay blocked. A claim with maxDeferred deferred events, or maxBytes of them, may lack some.
// If the aggregate was refused before, the claim has only its first deferred event.
func Unblock(events []Claimed, maxDeferred int, maxBytes int64) {
	whole := make(map[envelope.Aggregate]bool)
	rows, bytes := 0, int64(0)
	for _, e := range events {
		if e.Deferred {
			whole[e.Aggregate()] = e.Attempts == 0
			rows++
			bytes += int64(len(e.Payload))
		}
	}
	if rows >= maxDeferred || bytes >= maxBytes {
		return
	}
	for i := range events {
		events[i].Blocked = events[i].Blocked && !whole[events[i].Aggregate()]
	}
}
