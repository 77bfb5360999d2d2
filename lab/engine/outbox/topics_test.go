package outbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"example.com/videocatalog/internal/outbox"
)

// A message goes to the topic of its aggregate type, and one of a type without a
// topic is refused, which holds up no other aggregate.
func TestTopicsRouteByAggregateType(t *testing.T) {
	t.Parallel()
	orders, carts := &recorder{}, &recorder{}
	topics := outbox.Topics{"order": orders, "cart": carts, "voucher": orders} // two types of one topic
	for aggregateType, isRefused := range map[string]bool{"order": false, "cart": false, "voucher": false, "invoice": true} {
		m := message(aggregateType[:1] + "1")
		m.AggregateType = aggregateType
		if _, refused := errors.AsType[*outbox.RefusedError](topics.Publish(m).Wait(t.Context())); refused != isRefused {
			t.Errorf("a message of the type %s is refused: %t, want %t", aggregateType, refused, isRefused)
		}
	}
	sent, _ := orders.take()
	slices.Sort(sent)
	other, _ := carts.take()
	if got := strings.Join(append(sent, other...), " "); got != "o1 v1 c1" {
		t.Errorf("sent to orders, and to carts: %s, want o1 v1, and c1", got)
	}
}
