package domain

import "github.com/google/uuid"

// OrderProductConcerns returns the id of the order for which a product has reserved stock, or which
// it has rejected: the product says it in its event.
func OrderProductConcerns(e ProductEvent) []uuid.UUID {
	if e.Type != ProductUpdated || e.Product.OrderID == uuid.Nil {
		return nil
	}
	return []uuid.UUID{e.Product.OrderID} // perhaps of an earlier event: then the order refuses
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
