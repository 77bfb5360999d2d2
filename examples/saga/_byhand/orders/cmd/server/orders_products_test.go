package main

import (
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	orderv1 "saga.example.com/orders/api/proto/order/v1"
	productv1 "saga.example.com/orders/api/proto/product/v1"
	"saga.example.com/orders/internal/envelope"
	"saga.example.com/orders/internal/event"
	"saga.example.com/orders/internal/names"
)

// An event runs the command on the order that it names: once, however often the event comes.
func TestOrderProductReaction(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t)
	commands := orderv1.NewOrderServiceClient(p.conn)
	created, err := commands.CreateOrder(t.Context(), &orderv1.CreateOrderRequest{Order: &orderv1.Order{
		ProductId:   "01890a5d-ac96-7a01-8b02-0c0d0e0f2001",
		Quantity:    7,
		AmountCents: 7_000_000_000,
	}})
	if err != nil {
		t.Fatal(err)
	}
	name := created.GetName()
	client, err := s.pubsub.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	publisher := client.Publisher(names.ProductTopic.Name)
	publisher.EnableMessageOrdering = true
	defer publisher.Stop()
	id := uuid.NewString()
	publish := func(eventID string, version int64) {
		t.Helper()
		at := time.UnixMilli(1_767_323_045_678).UTC()
		payload, err := proto.Marshal(&productv1.ProductEvent{
			EventId: eventID, ProductId: id, Version: version, OccurredAtMs: at.UnixMilli(),
			Product: &productv1.ProductEvent_Snapshot{
				CreateTimeMs: at.UnixMilli(), UpdateTimeMs: at.UnixMilli(),
				OrderId: name[len("orders/"):], Outcome: productv1.ProductEvent_OUTCOME_RESERVED,
			},
			Type: &productv1.ProductEvent_Updated{Updated: &productv1.ProductEvent_ProductUpdated{}},
		})
		if err != nil {
			t.Fatal(err)
		}
		m := envelope.Message{
			ID: uuid.MustParse(eventID), AggregateType: event.AggregateProduct, AggregateID: id, Type: "ProductUpdated", Version: version,
			SchemaVersion: event.ProductSchemaVersion, Payload: payload, OccurredAt: at,
		}
		if _, err := publisher.Publish(t.Context(), &pubsub.Message{Data: payload, Attributes: m.Attributes(), OrderingKey: id}).Get(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	happened := func() bool {
		got, err := commands.GetOrder(t.Context(), &orderv1.GetOrderRequest{Name: name})
		return err == nil && got.GetVersion() == 2 && got.GetState() == orderv1.Order_STATE_RESERVED
	}
	cause, last := uuid.NewString(), uuid.NewString()
	publish(cause, 1)
	eventually(t, 30*time.Second, "the reaction to ProductUpdated", happened)
	publish(cause, 1)
	publish(last, 2)
	count := func(sql string, args ...any) (n int) {
		if err := s.pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, 30*time.Second, "the next event, which comes after the repeated one", func() bool {
		return count("SELECT count(*) FROM orders_db.inbox WHERE consumer = 'orders-order-product' AND event_id = $1", last) == 1
	})
	if n := count("SELECT count(*) FROM orders_db.outbox WHERE causation_id = $1", cause); n != 1 || !happened() {
		t.Errorf("the event led to %d events, want 1", n)
	}
}
