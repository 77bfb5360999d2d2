package outbox_test

import (
	"testing"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// If the lane of an aggregate changed, two publishers could publish its pending events: correct
// the code and not the numbers here.
func TestLaneNeverChanges(t *testing.T) {
	t.Parallel()
	for aggregate, want := range map[envelope.Aggregate]int16{
		{}:                        6,
		{Type: "letter", ID: "a"}: 5,
		{Type: "letter", ID: "b"}: 4,
		{Type: "parcel", ID: "a"}: 4,
		{Type: "letter", ID: "018f4c3a-7d2e-7b61-9a54-2f0c8e6d1b37"}: 4,
		{Type: "letter", ID: "018f4c3a-7d2e-7b61-9a54-2f0c8e6d1b38"}: 1,
		{Type: "parcel", ID: "018f4c3a-7d2e-7b61-9a54-2f0c8e6d1b37"}: 3,
	} {
		if got := outbox.Lane(aggregate); got != want {
			t.Errorf("Lane(%+v) = %d, want %d", aggregate, got, want)
		}
	}
}
