package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A history without a mistake has one product, an order that is confirmed, one that is rejected,
// and one whose payment comes too late. Each mistake in it is found.
func TestCheck(t *testing.T) {
	if wrong := good().check(); len(wrong) > 0 {
		t.Fatalf("a good history is wrong: %q", wrong)
	}
	for name, c := range map[string]struct {
		spoil func(*result)
		want  string
	}{
		"an order is stuck":            {func(r *result) { r.remove("OrderCanceled", "o3"); r.rows["Order o3"] = row{"reserved", 2} }, "order o3 ended 0 times"},
		"an order ends twice":          {func(r *result) { r.add("OrderCanceled", "o1", 4, state{State: "canceled"}) }, "order o1 ended 2 times"},
		"an order is lost":             {func(r *result) { r.placed = append(r.placed, order{id: "o4", product: "p1"}) }, "order o4 ended 0 times"},
		"an order takes too long":      {func(r *result) { r.find("OrderConfirmed", "o1").At = began.Add(time.Hour) }, "order o1 took 59m59.999s"},
		"a canceled order is paid":     {func(r *result) { r.remove("PaymentCanceled", "o3"); r.rows["Payment o3"] = row{"captured", 2} }, "order o3 is canceled, and its payment is not"},
		"a confirmed order is unpaid":  {func(r *result) { r.remove("PaymentCaptured", "o1"); r.rows["Payment o1"] = row{"requested", 1} }, "order o1 is confirmed, and its payment is not"},
		"the amount differs":           {func(r *result) { r.find("PaymentCaptured", "o1").State.AmountCents++ }, "order o1 is paid with 501 cents"},
		"a version is missing":         {func(r *result) { r.remove("OrderReserved", "o1") }, "Order o1: version 2 is missing"},
		"a version is there twice":     {func(r *result) { r.add("OrderReserved", "o1", 2, state{State: "reserved"}) }, "Order o1: version 3 is missing, or there twice"},
		"the row has another state":    {func(r *result) { r.rows["Order o1"] = row{"canceled", 3} }, `Order o1: the row is "canceled"`},
		"the row was never published":  {func(r *result) { r.rows["Payment o1"] = row{"captured", 3} }, `Payment o1: the row is "captured" in version 3`},
		"a row without an event":       {func(r *result) { r.rows["Payment o2"] = row{"captured", 1} }, "Payment o2 has a row, and no event"},
		"a replica differs":            {func(r *result) { r.stale = []string{"Order o1"} }, "a replica of Order o1 differs"},
		"an order is made twice":       {func(r *result) { r.placed = r.placed[1:] }, "Order o1 is of no order that was placed"},
		"stock appears":                {func(r *result) { r.product("p1", 4).Available++ }, "product p1, version 4: 1 available"},
		"stock is negative":            {func(r *result) { p := r.product("p1", 2); p.Available, p.Reserved = -1, 4 }, "product p1, version 2: -1 available"},
		"stock stays reserved":         {func(r *result) { p := r.product("p1", 6); p.Available, p.Reserved = 0, 1 }, "product p1: 1 reserved"},
		"a confirmed order is unsold":  {func(r *result) { p := r.product("p1", 6); p.Available, p.Sold = 3, 0 }, "product p1: 0 reserved for 0 orders, 0 sold, want none and 2"},
		"a product was never heard of": {func(r *result) { r.stock["p2"] = 1 }, "product p2 has no event"},
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			c.spoil(&r)
			if wrong := strings.Join(r.check(), "\n"); !strings.Contains(wrong, c.want) {
				t.Errorf("found %q, want %q", wrong, c.want)
			}
		})
	}
}

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// good returns that history. Product p1 has three pieces. Order o1 buys two. Order o2 wants two, and
// there is one. Order o3 wants that one, and pays too late.
func good() result {
	r := result{
		placed: []order{{"o1", "p1", 2, 500}, {"o2", "p1", 2, 600}, {"o3", "p1", 1, 700}},
		stock:  map[string]int64{"p1": 3},
		rows: map[string]row{
			"Order o1": {"confirmed", 3}, "Order o2": {"canceled", 2}, "Order o3": {"canceled", 3}, "Product p1": {"", 6},
			"Payment o1": {"captured", 2}, "Payment o3": {"canceled", 3},
		},
	}
	r.add("ProductCreated", "p1", 1, state{Available: 3})
	r.add("OrderCreated", "o1", 1, state{State: "placed"})
	r.add("OrderCreated", "o2", 1, state{State: "placed"})
	r.add("OrderCreated", "o3", 1, state{State: "placed"})
	r.add("ProductUpdated", "p1", 2, state{Available: 1, Reserved: 2, OpenOrders: []string{"o1"}, OrderID: "o1", Outcome: "reserved"})
	r.add("ProductUpdated", "p1", 3, state{Available: 1, Reserved: 2, OpenOrders: []string{"o1"}, OrderID: "o2", Outcome: "rejected"})
	r.add("ProductUpdated", "p1", 4, state{Reserved: 3, OpenOrders: []string{"o1", "o3"}, OrderID: "o3", Outcome: "reserved"})
	r.add("OrderReserved", "o1", 2, state{State: "reserved"})
	r.add("OrderCanceled", "o2", 2, state{State: "canceled"})
	r.add("OrderReserved", "o3", 2, state{State: "reserved"})
	r.add("PaymentCreated", "o1", 1, state{State: "requested", AmountCents: 500})
	r.add("PaymentCreated", "o3", 1, state{State: "requested", AmountCents: 700})
	r.add("PaymentCaptured", "o1", 2, state{State: "captured", AmountCents: 500})
	r.add("OrderConfirmed", "o1", 3, state{State: "confirmed"})
	r.add("OrderCanceled", "o3", 3, state{State: "canceled"})
	r.add("PaymentCaptured", "o3", 2, state{State: "captured", AmountCents: 700})
	r.add("PaymentCanceled", "o3", 3, state{State: "canceled", AmountCents: 700})
	r.add("ProductUpdated", "p1", 5, state{Reserved: 1, Sold: 2, OpenOrders: []string{"o3"}, OrderID: "o1", Outcome: "sold"})
	r.add("ProductUpdated", "p1", 6, state{Available: 1, Sold: 2, OrderID: "o3", Outcome: "released"})
	return r
}

func (r *result) add(typ, aggregate string, version int64, s state) {
	at := began.Add(time.Duration(len(r.events)) * time.Millisecond)
	r.events = append(r.events, event{ID: fmt.Sprint(len(r.events)), Type: typ, Aggregate: aggregate, Version: version, At: at, State: s})
}

func (r *result) index(typ, aggregate string, version int64) int {
	for i, e := range r.events {
		if e.Type == typ && e.Aggregate == aggregate && (version == 0 || e.Version == version) {
			return i
		}
	}
	panic("no such event")
}

func (r *result) find(typ, aggregate string) *event { return &r.events[r.index(typ, aggregate, 0)] }

func (r *result) product(id string, version int64) *state {
	return &r.events[r.index("ProductUpdated", id, version)].State
}

func (r *result) remove(typ, aggregate string) {
	i := r.index(typ, aggregate, 0)
	r.events = append(r.events[:i:i], r.events[i+1:]...)
}
