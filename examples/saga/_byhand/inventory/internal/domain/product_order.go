package domain

import (
	"slices"

	"github.com/google/uuid"
)

// ProductOrderConcerns returns the id of the product that an event of an order concerns.
func ProductOrderConcerns(e OrderEvent) []uuid.UUID {
	if !slices.Contains([]EventType{OrderCreated, OrderConfirmed, OrderCanceled}, e.Type) {
		return nil
	}
	return []uuid.UUID{e.Order.ProductID}
}

// ProductOrderReaction is how products react to orders. A new order reserves stock, or is
// rejected. A confirmed order sells what it has reserved, and a canceled one releases it. Product
// and quantity of an order must not change meanwhile.
func ProductOrderReaction(p Product, e OrderEvent, stamp Stamp) (*ProductEvent, error) {
	if p.ID == uuid.Nil {
		return nil, nil // there is no such product: the timer of the order cancels it
	}
	return UpdateProduct(func(d *ProductDetails) { *d = p.afterOrder(e) }, AnyVersion, stamp)(p)
}

// afterOrder returns the stock after an event of an order. available + reserved + sold stays the
// same, and none is negative.
func (p Product) afterOrder(e OrderEvent) ProductDetails {
	d, n := p.ProductDetails, e.Order.Quantity
	open := slices.Contains(d.OpenOrders, e.Order.ID)
	d.OrderID = e.Order.ID
	switch {
	case e.Type == OrderCreated && n > 0 && d.Available >= n:
		d.Available, d.Reserved, d.Outcome = d.Available-n, d.Reserved+n, ProductOutcomeReserved
		d.OpenOrders = append(slices.Clone(d.OpenOrders), e.Order.ID)
		return d
	case e.Type == OrderCreated:
		d.Outcome = ProductOutcomeRejected
		return d
	case !open: // it was rejected
		return p.ProductDetails
	case e.Type == OrderConfirmed:
		d.Reserved, d.Sold, d.Outcome = d.Reserved-n, d.Sold+n, ProductOutcomeSold
	default: // canceled
		d.Reserved, d.Available, d.Outcome = d.Reserved-n, d.Available+n, ProductOutcomeReleased
	}
	d.OpenOrders = slices.DeleteFunc(slices.Clone(d.OpenOrders), func(id uuid.UUID) bool { return id == e.Order.ID })
	return d
}
