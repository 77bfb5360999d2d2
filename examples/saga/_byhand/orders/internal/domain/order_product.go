package domain

import (
	"slices"

	"github.com/google/uuid"
)

// OrderProductReaction is how orders react to products. A product says in its event which order
// it has reserved stock for, or rejected.
func OrderProductReaction() Reaction[ProductEvent, Order, OrderEvent] {
	return Reaction[ProductEvent, Order, OrderEvent]{
		Concerns: func(e ProductEvent) []uuid.UUID {
			// An event that changed something else says what it said before.
			if e.Type != ProductUpdated || !slices.Contains(e.ChangedFields, "order_id") {
				return nil
			}
			return []uuid.UUID{e.Product.OrderID}
		},
		Decide: func(o Order, e ProductEvent, stamp Stamp) (*OrderEvent, error) {
			switch {
			case o.ID == uuid.Nil: // there is no such order
			case e.Product.Outcome == ProductOutcomeReserved:
				return ReserveOrder(AnyVersion, stamp)(o)
			case e.Product.Outcome == ProductOutcomeRejected:
				return CancelOrder(AnyVersion, stamp)(o)
			}
			return nil, nil
		},
	}
}
