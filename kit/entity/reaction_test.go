package entity

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// payment is an entity to whose events orders react.
var payment = entity{
	Name: "payment", Plural: "payments", Migration: 1001, EventTopic: "shop.payment.events",
	Fields: []field{
		{Name: "order_id", Type: typeUUID, Number: 10, Migration: 1001}, {Name: "payer_id", Type: typeUUID, Number: 11, Migration: 1001},
		{Name: "cents", Type: typeInt64, Number: 12, Migration: 1001}, {Name: "item_ids", Type: "uuids", Number: 13, Migration: 1001},
	},
	Transitions: []transition{{From: "open", To: "captured", Command: "capture"}, {From: "captured", To: "refunded", Command: "refund"}},
}

// withPayments adds descriptions to the service: orders that can be canceled, and payments.
func withPayments(t *testing.T, payment entity) {
	t.Helper()
	service(t)
	order, err := load(pathOf("order"))
	must(t, err)
	order.Fields = append(order.Fields, field{Name: "parent_id", Type: typeUUID, Number: 12, Migration: 1000})
	order.Transitions = append(order.Transitions, transition{From: "placed", To: "canceled", Command: "cancel"}, transition{From: "canceled", To: "draft", Command: "reopen"})
	order.LastNumber = 12
	for _, e := range []entity{order, payment} {
		must(t, e.save(new(undo)))
	}
	for _, path := range []string{"db/migrations/01001_payments.sql", "options/reactions/README.md"} {
		must(t, writeFile(path, nil))
	}
}

// Without the option that runs them, timers and reactions are errors that name it.
func TestReactionsNeedTheOption(t *testing.T) {
	withPayments(t, payment)
	must(t, removeFile("options/reactions/README.md"))
	_, timerErr := described(t, "turnip", "--fields=title:string", "--transitions=draft→placed:place", "--timers=draft:15m:place")
	_, reactionErr := react("order", "payment", "captured:order_id:place")
	for _, err := range []error{timerErr, reactionErr} {
		if err == nil || !strings.Contains(err.Error(), "--with reactions") {
			t.Errorf("error = %v, want one about --with reactions", err)
		}
	}
}

// reacted runs react, and writes the files for which no tool is needed.
func reacted(t *testing.T, name, to, on string) {
	t.Helper()
	all, err := react(name, to, on)
	must(t, err)
	for _, e := range all {
		if found := written(t, &e); !found.are(edits{}) {
			t.Errorf("written() = %+v, want files that nobody has edited", found)
		}
		must(t, e.save(new(undo)))
	}
}

func contains(t *testing.T, path string, parts ...string) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	for _, part := range parts {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s has no %q:\n%s", path, part, text)
		}
	}
}

// A reaction writes its own files and the topic with its consumer, and nothing else. Run again, it
// adds rules, and keeps those that are there. A rendering of everything changes nothing more.
func TestReact(t *testing.T) {
	withPayments(t, payment)
	before := all(t)
	reacted(t, "order", "payment", "captured:order_id:place refunded:order_id:cancel")
	const decision, topic = "internal/domain/order_payment.go", "internal/names/payment.go"
	contains(t, topic, "{\"payment-views\", \"order-payment\"},\n")
	contains(t, decision, "case PaymentCaptured, PaymentRefunded:", "return PlaceOrder(AnyVersion, stamp)(o)", "return CancelOrder(AnyVersion, stamp)(o)")
	var made []string
	for path := range all(t) {
		if _, ok := before[path]; !ok {
			made = append(made, path)
		}
	}
	if len(made) != 3 { // with the test of the decision
		t.Errorf("new files: %q, want those of the reaction and the topic", made)
	}

	reacted(t, "order", "payment", "captured:order_id:place created:payer_id:reopen")
	contains(t, decision, "case PaymentCaptured, PaymentRefunded:", "case PaymentCreated:\n", "e.Type == PaymentCreated && e.Payment.PayerID == o.ID:\n\t\treturn ReopenOrder(")
	reacted(t, "order", "order", "placed:parent_id:cancel")
	contains(t, "internal/names/order.go", "{\"order-views\", \"order-order\"},\n")

	files := all(t)
	entities, err := loadAll()
	must(t, err)
	for _, e := range entities {
		e.only = []string{topicFile(e.Name)}
		for i := range e.Reactions {
			e.only = append(e.only, e.Reactions[i].paths()...)
		}
		if found := written(t, &e); !found.are(edits{}) {
			t.Errorf("written() of %s = %+v", e.Name, found)
		}
	}
	same(t, "rendering again", files, all(t))
}

// An event can make the entity, with the id and the fields of the other one, and run commands on
// the entity with the same id.
func TestReactionMakesEntity(t *testing.T) {
	withPayments(t, payment)
	reacted(t, "payment", "order", "placed:id:create canceled:id:refund")
	contains(t, "internal/domain/payment_order.go",
		"case OrderPlaced, OrderCanceled:\n\t\tids = []uuid.UUID{e.Order.ID}",
		"case e.Type == OrderPlaced && o.ID == uuid.Nil:\n\t\treturn CreatePayment(e.Order.ID, PaymentDetails{}, stamp)",
		"case e.Type == OrderCanceled && e.Order.ID == o.ID:\n\t\treturn RefundPayment(AnyVersion, stamp)(o)")
	reacted(t, "order", "payment", "created:payer_id:create")
	contains(t, "internal/domain/order_payment.go", "return CreateOrder(e.Payment.PayerID, OrderDetails{}, stamp)")
}

// A new entity gets the fields with the same name and type, which must include all required fields.
func TestReactionCopiesFields(t *testing.T) {
	refund := payment
	refund.Name, refund.Plural, refund.EventTopic = "refund", "refunds", "shop.refund.events"
	refund.Fields = []field{
		{Name: "payer_id", Type: typeUUID, Number: 10, Migration: 1002}, {Name: "cents", Type: typeInt32, Number: 11, Migration: 1002},
		{Name: "item_ids", Type: "uuids", Number: 12, Migration: 1002}, {Name: "reason", Type: typeString, Number: 13, Migration: 1002},
	}
	withPayments(t, payment)
	must(t, errors.Join(refund.save(new(undo)), writeFile("db/migrations/01002_refunds.sql", nil)))
	reacted(t, "refund", "payment", "refunded:id:create")
	contains(t, "internal/domain/refund_payment.go",
		"return CreateRefund(e.Payment.ID, RefundDetails{PayerID: e.Payment.PayerID, ItemIDs: e.Payment.ItemIDs}, stamp)")
	refund.Fields[0].Required, refund.Fields[3].Required = true, true
	must(t, refund.save(new(undo)))
	_, err := react("refund", "payment", "refunded:id:create")
	for _, name := range []string{"payer_id", "reason"} { // payment has one of them, which may be empty
		want := `reaction refunded:id:create: refund needs the field "` + name + `", and payment has none of this name and type that is required`
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("react() = %v, want %s", err, want)
		}
	}
	if _, err := react("refund", "payment", "refunded:payer_id:create"); err == nil || strings.Contains(err.Error(), `"payer_id"`) {
		t.Errorf("react() = %v, want no error about the field that has the id", err)
	}
}

// An entity that grows keeps its reactions, and a topic its consumers.
func TestReactionsStayWhenEntitiesGrow(t *testing.T) {
	withPayments(t, payment)
	reacted(t, "order", "payment", "captured:order_id:place")
	order, err := described(t, "order", "--fields=title:string color:enum(red,green) parent_id:uuid note:string")
	if err != nil || len(order.Reactions) != 1 || order.Reactions[0].Rules[0].Run().Event != "OrderPlaced" {
		t.Errorf("the grown order = %+v, %v, want its reaction", order.Reactions, err)
	}
	grown, err := described(t, "payment", "--fields=order_id:uuid payer_id:uuid cents:int64 item_ids:uuids note:string")
	must(t, err)
	same(t, "consumers of the grown payment", []string{"payment-views", "order-payment"}, grown.Consumers())
}

// The consumer of a foreign topic has a name that no other service has. Long names are cut, and
// stay different.
func TestReactionConsumer(t *testing.T) {
	of := func(name string) entity { return entity{Name: name} }
	if got := reactionConsumer(of("purchase_order"), of("late_payment")); got != "purchase-order-late-payment" {
		t.Errorf("consumer = %s, want purchase-order-late-payment", got)
	}
	foreign := reactionConsumer(entity{Name: "order", names: names{Service: "shop"}}, entity{Name: "payment", ReplicaOf: "payment.events"})
	if !strings.HasPrefix(foreign, "shop-") || len(foreign) > 30 {
		t.Errorf("consumer of a foreign topic = %s, want the service before it, and at most 30 characters", foreign)
	}
	long := strings.Repeat("long_", 5)
	one, other := reactionConsumer(of(long+"order"), of("payment")), reactionConsumer(of(long+"order"), of("refund"))
	shop := names{Service: "shop"}
	replica, second := shop.reader(long+"order"), shop.reader(long+"order_line")
	if len(one) > 30 || len(other) > 30 || one == other || len(replica) > 30 || replica == second {
		t.Errorf("consumers of long names: %s and %s, %s and %s, want four of at most 30 characters", one, other, replica, second)
	}
}

// When entities get tenants later, a reaction between them is rendered again. Then none is named tenant.
func TestReactionsFollowTenants(t *testing.T) {
	withPayments(t, payment)
	must(t, writeFile("options/tenancy/README.md", nil))
	reacted(t, "order", "payment", "captured:order_id:place")
	for _, name := range []string{"order", "payment"} {
		all, err := options{name: name, tenant: true}.entities(t.Context())
		must(t, err)
		for _, e := range all {
			written(t, &e)
			must(t, e.save(new(undo)))
		}
	}
	contains(t, "internal/domain/order_payment.go", "o.TenantID != e.Payment.TenantID")
	contains(t, pathOf("order"), "tenant: 1002\n", "tenant_indexes:\n  - column: orders_tenant\n    migration: 1003\n")
	if _, err := described(t, "tenant", "--fields=title:string"); err == nil || !strings.Contains(err.Error(), "tenant_id") {
		t.Errorf("error = %v, want one about tenant_id", err)
	}
}

// Each mistake has an error of one sentence that names the place and the rule.
func TestReactionsAreRefused(t *testing.T) {
	withPayments(t, payment)
	replica := payment
	replica.Name, replica.Plural, replica.ReplicaOf, replica.Reader = "letter", "letters", "letter.events", "shop-letter"
	linux, guest := payment, payment
	linux.Name, linux.Plural = "linux", "linuxes"
	guest.Name, guest.Plural, guest.Tenant = "guest", "guests", 1001
	must(t, writeFile("options/tenancy/README.md", nil))
	for _, e := range []entity{replica, linux, guest} {
		must(t, e.save(new(undo)))
	}
	reacted(t, "order", "order", "placed:parent_id:cancel")
	must(t, writeFile("internal/domain/payment_order.go", []byte("package domain\n")))
	before := all(t)
	for _, c := range []struct{ name, to, on, want string }{
		{"parcel", "payment", "captured:order_id:place", `internal/entities has no entity "parcel"`},
		{"order", "parcel", "captured:order_id:place", `internal/entities has no entity "parcel"`},
		{"letter", "payment", "captured:order_id:capture", `letter is a replica: only its owner runs commands on it`},
		{"order", "linux", "captured:order_id:place", `the name of a file would end in _linux`},
		{"guest", "payment", "captured:order_id:capture", `guest is of a tenant, and the events of payment name none`},
		{"order", "payment", "captured:order_id", `reaction "captured:order_id": want EVENT:FIELD:COMMAND`},
		{"order", "payment", " ", `--on is empty`},
		{"order", "payment", "settled:order_id:place", `reaction settled:order_id:place: payment has no event "settled", want one of created, updated, deleted, undeleted, captured, refunded`},
		{"order", "payment", "captured:cart_id:place", `payment has no field "cart_id"`},
		{"order", "payment", "captured:cents:place", `the field "cents" of payment is int64, and must be uuid: it has the id of an order`},
		{"order", "payment", "captured:item_ids:place", `the field "item_ids" of payment is uuids, and must be uuid`},
		{"order", "payment", "captured:order_id:send", `order has no command "send"`},
		{"order", "payment", "captured:id:create captured:order_id:place", `the event captured has the reaction captured:id:create already: an event that creates does nothing else`},
		{"order", "payment", "captured:order_id:place captured:id:create", `the event captured has the reaction captured:order_id:place already`},
		{"order", "payment", "captured:id:create captured:id:create", `the event captured has the command "create" already`},
		{"order", "payment", "captured:order_id:place captured:order_id:place", `the event captured has the command "place" already`},
		{"order", "payment", "captured:order_id:place captured:payer_id:place", `the event captured has the command "place" already`},
		{"order", "payment", "captured:order_id:place captured:order_id:cancel", `the event captured has the command "place" for order_id already: an event runs one command on an order`},
		{"order", "order", "canceled:parent_id:cancel", `reaction canceled:parent_id:cancel: the command "cancel" leads to OrderCanceled again, so it would never end`},
		{"order", "order", "canceled:parent_id:place", `the command "place" leads to OrderCanceled again`},
		{"payment", "order", "placed:parent_id:capture", `internal/domain/payment_order.go exists`},
	} {
		_, err := react(c.name, c.to, c.on)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s on %q = %v, want an error with %q", c.name, c.to, c.on, err, c.want)
		}
	}
	same(t, "refused reactions left", before, all(t))
	must(t, os.Remove("internal/domain/payment_order.go"))
	reacted(t, "order", "payment", "captured:order_id:reopen")
	if _, err := react("payment", "order", "reopened:parent_id:capture"); err == nil || !strings.Contains(err.Error(), "leads to OrderReopened again") {
		t.Errorf("two entities that react to each other without end = %v", err)
	}
}

// A description that somebody has edited is checked when it is read.
func TestReactionsOfDescriptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		reaction reaction
		want     string
	}{
		{reaction{To: "parcel", Consumer: "x"}, `order reacts to "parcel", and internal/entities has no entity of this name`},
		{reaction{To: "payment", Consumer: "x"}, `order reacts to payment without rules`},
		{reaction{To: "payment", Consumer: "x", Rules: []rule{{Event: "captured", Field: "order_id", Command: "send"}}}, `order has no command "send"`},
	} {
		withPayments(t, payment)
		e, err := load(pathOf("order"))
		must(t, err)
		e.Reactions = []reaction{c.reaction}
		must(t, e.save(new(undo)))
		if _, err := load(pathOf("order")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("load() = %v, want an error with %q", err, c.want)
		}
	}
}

// The command line has two names and the rules.
func TestParseReact(t *testing.T) {
	o, err := parse([]string{"react", "order", "payment", "--on", "captured:order_id:place"})
	if err != nil || o.name != "order" || o.to != "payment" || o.on != "captured:order_id:place" {
		t.Errorf("parse() = %+v, %v", o, err)
	}
	for _, args := range [][]string{
		{"react", "order", "payment"}, {"react", "order", "--on=captured:order_id:place"}, {"react", "order", "payment", "--on=a:b:c", "--plural=orders"},
		{"add", "order", "--fields=title:string", "--on=a:b:c"}, {"render", "--on=a:b:c"},
	} {
		if o, err := parse(args); err == nil || !strings.Contains(err.Error(), "--on") {
			t.Errorf("parse(%q) = %+v, %v, want an error about --on", args, o, err)
		}
	}
}
