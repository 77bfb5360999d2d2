package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// result is all that has happened.
type result struct {
	placed []order          // that the orders service has accepted
	stock  map[string]int64 // at the beginning, by product
	events []event
	rows   map[string]row // at the end, by kind and id of the aggregate
	stale  []string       // aggregates of which a service has a replica that differs
	repeat int            // messages that were published again
	longer time.Duration  // that a saga may take, beyond its timers
}

// order is an order that a customer has placed.
type order struct {
	id, product     string
	quantity, cents int64
}

// row is an aggregate in the database of its service.
type row struct {
	state   string
	version int64
}

// check returns what breaks a rule of the saga.
func (r result) check() (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	of := make(map[string][]event) // by aggregate
	for _, e := range r.events {
		of[kind(e)+" "+e.Aggregate] = append(of[kind(e)+" "+e.Aggregate], e)
	}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		all := of[key]
		slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.Version, b.Version) })
		for i, e := range all {
			if e.Version != int64(i)+1 {
				add("%s: version %d is missing, or there twice", key, i+1)
				break
			}
		}
		last := all[len(all)-1]
		if got := r.rows[key]; got.version != last.Version || got.state != last.State.State {
			add("%s: the row is %q in version %d, and its last event says %q in version %d", key, got.state, got.version, last.State.State, last.Version)
		}
	}
	for _, key := range r.stale {
		add("a replica of %s differs", key)
	}
	isPlaced, sold := make(map[string]bool), make(map[string]int64)
	for _, o := range r.placed {
		isPlaced[o.id] = true
		confirmed := r.checkOrder(o, of["Order "+o.id], of["Payment "+o.id], add)
		if confirmed {
			sold[o.product] += o.quantity
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.rows)) {
		name, id, _ := strings.Cut(key, " ")
		if len(of[key]) == 0 {
			add("%s has a row, and no event", key)
		}
		if name != "Product" && !isPlaced[id] {
			add("%s is of no order that was placed", key)
		}
	}
	for product, stock := range r.stock {
		checkProduct(product, stock, sold[product], of["Product "+product], add)
	}
	return wrong
}

// kind returns the aggregate type of an event, with a capital letter.
func kind(e event) string {
	for _, name := range []string{"Order", "Payment", "Product"} {
		if strings.HasPrefix(e.Type, name) {
			return name
		}
	}
	return ""
}

// checkOrder checks that an order ended once and in time, and that it is paid if and only if it is
// confirmed. It reports whether the order is confirmed.
func (r result) checkOrder(o order, events, payment []event, add func(string, ...any)) (confirmed bool) {
	ends := slices.DeleteFunc(slices.Clone(events), func(e event) bool { return e.Type != "OrderConfirmed" && e.Type != "OrderCanceled" })
	if len(ends) != 1 {
		add("order %s ended %d times, want once: %s", o.id, len(ends), path(events))
		return false
	}
	if took := ends[0].At.Sub(events[0].At); took > 2*timeout+r.longer {
		add("order %s took %s, want at most %s: %s", o.id, took, 2*timeout+r.longer, path(events))
	}
	confirmed = ends[0].Type == "OrderConfirmed"
	captured := len(payment) > 0 && payment[len(payment)-1].State.State == "captured"
	if confirmed != captured {
		add("order %s is %s, and its payment is not: %s; %s", o.id, ends[0].State.State, path(events), path(payment))
	}
	if captured && payment[len(payment)-1].State.AmountCents != o.cents {
		add("order %s is paid with %d cents, want %d", o.id, payment[len(payment)-1].State.AmountCents, o.cents)
	}
	return confirmed
}

// checkProduct checks that stock never appeared, got lost or was negative, and that in the end
// exactly the confirmed orders have the sold stock, and nothing is reserved.
func checkProduct(id string, stock, sold int64, events []event, add func(string, ...any)) {
	for _, e := range events {
		s := e.State
		if s.Available+s.Reserved+s.Sold != stock || min(s.Available, s.Reserved, s.Sold) < 0 {
			add("product %s, version %d: %d available, %d reserved, %d sold, want %d in all and none negative", id, e.Version, s.Available, s.Reserved, s.Sold, stock)
		}
	}
	if len(events) == 0 {
		add("product %s has no event", id)
		return
	}
	if last := events[len(events)-1].State; last.Reserved != 0 || len(last.OpenOrders) != 0 || last.Sold != sold {
		add("product %s: %d reserved for %d orders, %d sold, want none and %d", id, last.Reserved, len(last.OpenOrders), last.Sold, sold)
	}
}

// path describes events in words, in order.
func path(events []event) string {
	var words []string
	for _, e := range events {
		word := e.Type
		if e.Type == "ProductUpdated" {
			word = "stock " + e.State.Outcome
		}
		words = append(words, word)
	}
	return strings.Join(words, " → ")
}

// report prints the result.
func report(out io.Writer, r result, wrong []string) error {
	counts := make(map[string]int)
	for _, e := range r.events {
		counts[e.Type]++
	}
	fmt.Fprintf(out, "\n%d orders: %d confirmed, %d canceled. %d payments: %d captured, %d declined, %d canceled. %d events, %d messages of them again.\n",
		len(r.placed), counts["OrderConfirmed"], counts["OrderCanceled"], counts["PaymentCreated"], counts["PaymentCaptured"], counts["PaymentDeclined"],
		counts["PaymentCanceled"], len(r.events), r.repeat)
	if len(wrong) == 0 {
		fmt.Fprintln(out, "Each order ended once, no stock was lost, and exactly the confirmed orders are paid.")
		return nil
	}
	const shown = 20
	for _, text := range wrong[:min(shown, len(wrong))] {
		fmt.Fprintln(out, "WRONG:", text)
	}
	return fmt.Errorf("%d violations", len(wrong))
}
