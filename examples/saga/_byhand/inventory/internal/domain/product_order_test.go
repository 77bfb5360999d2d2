package domain_test

import (
	"testing"

	"github.com/google/uuid"

	"saga.example.com/inventory/internal/domain"
)

// Two orders want two each of the last three pieces. The first reserves two, so the second is rejected.
// Then the first is confirmed or canceled. The end of the second changes nothing.
func TestProductOrderReaction(t *testing.T) {
	decide := domain.ProductOrderReaction
	first, second := uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f2004"), uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f2005")
	for _, end := range []struct {
		of                        domain.EventType
		available, reserved, sold int32
	}{
		{domain.OrderConfirmed, 1, 0, 2},
		{domain.OrderCanceled, 3, 0, 0},
	} {
		product := domain.Product{ID: uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f2006"), Version: 1, ProductDetails: domain.ProductDetails{Title: "a lamp", Available: 3}}
		react := func(typ domain.EventType, order uuid.UUID) domain.ProductOutcome {
			t.Helper()
			event := domain.OrderEvent{Type: typ, Order: domain.Order{ID: order, OrderDetails: domain.OrderDetails{ProductID: product.ID, Quantity: 2}}}
			made, err := decide(product, event, domain.Stamp{EventID: uuid.New()})
			if err != nil {
				t.Fatal(err)
			}
			if made == nil {
				return ""
			}
			product = made.Product
			return product.Outcome
		}
		for _, step := range []struct {
			of    domain.EventType
			order uuid.UUID
			want  domain.ProductOutcome
		}{
			{domain.OrderCreated, first, domain.ProductOutcomeReserved},
			{domain.OrderCreated, second, domain.ProductOutcomeRejected},
			{domain.OrderCanceled, second, ""},
			{end.of, first, map[domain.EventType]domain.ProductOutcome{domain.OrderConfirmed: domain.ProductOutcomeSold, domain.OrderCanceled: domain.ProductOutcomeReleased}[end.of]},
			{end.of, first, ""},
		} {
			if got := react(step.of, step.order); got != step.want {
				t.Errorf("%s of %s: outcome %q, want %q", step.of, step.order, got, step.want)
			}
		}
		if product.Available != end.available || product.Reserved != end.reserved || product.Sold != end.sold || len(product.OpenOrders) != 0 {
			t.Errorf("after %s the stock is %+v, want %+v", end.of, product.ProductDetails, end)
		}
	}
}
