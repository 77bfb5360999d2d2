package domain_test

import (
	"testing"

	"github.com/google/uuid"

	"saga.example.com/orders/internal/domain"
)

// Reserved stock reserves the order, and rejected stock cancels it. No other event of a product
// changes an order.
func TestOrderProductReaction(t *testing.T) {
	order := domain.Order{ID: uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f2004"), State: domain.OrderStatePlaced, Version: 1}
	for _, test := range []struct {
		outcome domain.ProductOutcome
		of      domain.Order
		want    domain.EventType // empty: none
	}{
		{domain.ProductOutcomeReserved, order, domain.OrderReserved},
		{domain.ProductOutcomeRejected, order, domain.OrderCanceled},
		{domain.ProductOutcomeReleased, order, ""},
		{domain.ProductOutcomeReserved, domain.Order{}, ""},
	} {
		e := domain.ProductEvent{
			Type:    domain.ProductUpdated,
			Product: domain.Product{ProductDetails: domain.ProductDetails{OrderID: order.ID, Outcome: test.outcome}},
		}
		if ids := domain.OrderProductConcerns(e); len(ids) != 1 || ids[0] != order.ID {
			t.Errorf("it concerns %v, want %s", ids, order.ID)
		}
		made, err := domain.OrderProductReaction(test.of, e, domain.Stamp{EventID: uuid.New()})
		if err != nil || made == nil && test.want != "" || made != nil && made.Type != test.want {
			t.Errorf("%s = %v, %v, want %q", test.outcome, made, err, test.want)
		}
	}
	for _, e := range []domain.ProductEvent{
		{Type: domain.ProductCreated},
		{Type: domain.ProductUpdated}, // before the first order
	} {
		if ids := domain.OrderProductConcerns(e); len(ids) != 0 {
			t.Errorf("%s concerns %v, want none", e.Type, ids)
		}
	}
}
