package domain

import "github.com/google/uuid"

// OrderProductReaction is how orders react to products. A product says in its event which order
// it has reserved stock for, or rejected.
func OrderProductReaction() Reaction[ProductEvent, Order, OrderEvent] {
	return Reaction[ProductEvent, Order, OrderEvent]{
		Concerns: func(e ProductEvent) []uuid.UUID {
			if e.Type != ProductUpdated || e.Product.OrderID == uuid.Nil {
				return nil
			}
			return []uuid.UUID{e.Product.OrderID} // perhaps of an earlier event: then the order refuses
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
