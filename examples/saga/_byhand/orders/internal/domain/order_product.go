package domain

import "github.com/google/uuid"

// OrderProductConcerns returns the id of the order that an event of a product names. Only an update
// names one.
func OrderProductConcerns(e ProductEvent) []uuid.UUID {
	if e.Type != ProductUpdated || e.Product.OrderID == uuid.Nil {
		return nil
	}
	return []uuid.UUID{e.Product.OrderID} // perhaps the order of an earlier event: then it refuses
}

// OrderProductReaction is how orders react to products.
func OrderProductReaction(o Order, e ProductEvent, stamp Stamp) (*OrderEvent, error) {
	switch {
	case o.ID == uuid.Nil: // there is no such order
	case e.Product.Outcome == ProductOutcomeReserved:
		return ReserveOrder(AnyVersion, stamp)(o)
	case e.Product.Outcome == ProductOutcomeRejected:
		return CancelOrder(AnyVersion, stamp)(o)
	}
	return nil, nil
}
