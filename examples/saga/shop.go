package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"example.com/videocatalog/internal/envelope"
)

// shop plays the customers and the bank.
type shop struct {
	*stack
	options
	random *rand.Rand // of the goroutine that places orders
	stock  map[string]int64
	names  []string // ids of the products
	out    io.Writer
	shown  int // lines on the screen

	mu     sync.Mutex
	placed []order // guarded by mu: in their order
	all    bool    // guarded by mu: no more orders come
	fault  string  // guarded by mu: the last one
}

// open fills the inventory. Customers want more than there is. Orders of the same product are
// handled one after the other, so the number of products grows with the number of orders.
func (s *stack) open(ctx context.Context, o options, random *rand.Rand, out io.Writer) (*shop, error) {
	shop := &shop{stack: s, options: o, random: random, out: out, stock: make(map[string]int64)}
	products := min(5+o.orders/40, 50)
	const wanted, part = 2, 0.7 // pieces an order wants on average, and the part of them that is there
	for i := range products {
		stock := int64(part*wanted*float64(o.orders)/float64(products)) + 1
		var made struct{ Name string }
		body := map[string]any{"title": fmt.Sprintf("Product %d", i+1), "available": stock}
		if err := s.call(ctx, "inventory", "/v1/products?requestId="+uuid.NewString(), body, &made); err != nil {
			return nil, err
		}
		id := strings.TrimPrefix(made.Name, "products/")
		shop.stock[id], shop.names = stock, append(shop.names, id)
	}
	return shop, nil
}

// customers place the orders. Some of them change their minds.
func (s *shop) customers(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	tick := time.NewTicker(time.Second / time.Duration(s.rate))
	defer tick.Stop()
	for range s.orders {
		o := order{product: s.names[s.random.IntN(len(s.names))], quantity: 1 + s.random.Int64N(3), cents: 100 + s.random.Int64N(10_000)}
		regret := s.random.IntN(20) == 0
		after := time.Duration(s.random.Int64N(int64(time.Second)))
		g.Go(func() error {
			if err := s.place(ctx, o); err != nil || !regret {
				return err
			}
			return s.cancelLater(ctx, after)
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), g.Wait())
		}
	}
	err := g.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = true
	return err
}

// place places an order. The request id makes the repetitions of a call harmless.
func (s *shop) place(ctx context.Context, o order) error {
	var made struct{ Name string }
	body := map[string]any{"productId": o.product, "quantity": o.quantity, "amountCents": o.cents}
	if err := s.call(ctx, "orders", "/v1/orders?requestId="+uuid.NewString(), body, &made); err != nil {
		return err
	}
	o.id = strings.TrimPrefix(made.Name, "orders/")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.placed = append(s.placed, o)
	return nil
}

// cancelLater cancels the newest order after a time. If that is too late, the service refuses it.
func (s *shop) cancelLater(ctx context.Context, after time.Duration) error {
	s.mu.Lock()
	id := s.placed[len(s.placed)-1].id
	s.mu.Unlock()
	return s.callLater(ctx, after, "orders", "/v1/orders/"+id+":cancel")
}

// bank responds to requested payments, as a payment provider does. It captures most of them soon,
// declines some, captures some about when the timer of their order ends, and never responds to
// some. It acknowledges a message after its response is stored, so a crash loses none. If a
// message comes twice, its response comes twice, and the state of the payment makes the second
// harmless.
func (s *shop) bank(ctx context.Context) error {
	client, err := s.broker.Client(ctx, project)
	if err != nil {
		return err
	}
	defer client.Close()
	const name, topic = "projects/" + project + "/subscriptions/bank", "projects/" + project + "/topics/payments.payment.events"
	if _, err := client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{Name: name, Topic: topic}); err != nil {
		return err
	}
	var failed error
	var once sync.Once
	receiving, cancel := context.WithCancel(ctx)
	defer cancel()
	err = client.Subscriber(name).Receive(receiving, func(ctx context.Context, m *pubsub.Message) {
		if m.Attributes[envelope.AttrEventType] != "PaymentCreated" {
			m.Ack()
			return
		}
		if err := s.pay(ctx, m.Attributes[envelope.AttrAggregateID]); err != nil {
			m.Nack()
			once.Do(func() { failed = err; cancel() })
			return
		}
		m.Ack()
	})
	if ctx.Err() != nil {
		return err
	}
	return errors.Join(err, failed)
}

// pay decides about a payment by its id, so that a repetition decides the same.
func (s *shop) pay(ctx context.Context, id string) error {
	random := rand.New(rand.NewPCG(s.seed, uint64(uuid.NewSHA1(uuid.Nil, []byte(id)).ID())))
	soon := time.Duration(random.Int64N(int64(time.Second / 2)))
	switch n := random.IntN(100); {
	case n < 7:
		return nil // no response: the timer of the order cancels it
	case n < 12:
		return s.callLater(ctx, timeout-time.Second+4*soon, "payments", "/v1/payments/"+id+":capture") // about when the timer ends
	case n < 20:
		return s.callLater(ctx, soon, "payments", "/v1/payments/"+id+":decline")
	default:
		return s.callLater(ctx, soon, "payments", "/v1/payments/"+id+":capture")
	}
}

// callLater runs a command after a time. A refusal by the rules of the service is no error.
func (s *shop) callLater(ctx context.Context, after time.Duration, service, path string) error {
	if err := gax.Sleep(ctx, after); err != nil {
		return err
	}
	err := s.call(ctx, service, path, map[string]any{}, nil)
	if refused, ok := errors.AsType[refusal](err); ok && refused.status == http.StatusBadRequest {
		return nil
	}
	return err
}

// refusal is a response with a client error, such as 400.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.text) }

// call posts to a service until it has a response, which it reads into out.
func (s *stack) call(ctx context.Context, service, path string, body, out any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for {
		status, got, err := post(ctx, s.processes[service].url+path, text)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && status == http.StatusOK && out == nil:
			return nil
		case err == nil && status == http.StatusOK:
			return json.Unmarshal(got, out)
		case err == nil && status < http.StatusInternalServerError && status != http.StatusConflict && status != http.StatusTooManyRequests:
			return fmt.Errorf("POST %s: %w", path, refusal{status, string(got)})
		}
		if err := gax.Sleep(ctx, 100*time.Millisecond); err != nil { // the service is down, or not ready
			return err
		}
	}
}

func post(ctx context.Context, url string, body []byte) (status int, content []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	content, err = io.ReadAll(response.Body)
	return response.StatusCode, content, err
}

// await waits until nothing has to happen any more, or until a saga counts as stuck: check then
// reports the saga.
func (s *shop) await(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, 2*timeout+recovery)
	defer cancel()
	for sleep(limited, time.Second) {
		idle, err := s.idle(limited)
		if idle {
			return nil
		}
		if err != nil && limited.Err() == nil {
			return err
		}
	}
	return ctx.Err()
}

// reactions are the consumers that react, with the type of the events that each gets.
var reactions = []struct{ service, consumer, kind string }{
	{"inventory", "inventory-product-order", "Order"}, {"orders", "orders-order-product", "Product"},
	{"payments", "payments-payment-order", "Order"}, {"orders", "orders-order-payment", "Payment"},
}

// idle reports whether nothing has to happen any more: all orders have ended, no event and no
// timer waits, and every service has reacted to every event and has it in its replicas.
func (s *shop) idle(ctx context.Context) (bool, error) {
	if !s.ended() {
		return false, nil
	}
	conn, err := pgx.Connect(ctx, s.server().DSN("postgres"))
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, name := range services {
		var waiting int
		if err := conn.QueryRow(ctx, fmt.Sprintf("SELECT (SELECT count(*) FROM %[1]s_db.outbox_pending) + (SELECT count(*) FROM %[1]s_db.outbox_deferred) + (SELECT count(*) FROM %[1]s_db.timers)", name)).Scan(&waiting); err != nil || waiting > 0 {
			return false, err
		}
	}
	published := s.history.kinds()
	for _, r := range reactions {
		var received int
		if err := conn.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM %s_db.inbox WHERE consumer = $1", r.service), r.consumer).Scan(&received); err != nil || received < published[r.kind] {
			return false, err
		}
	}
	stale, err := staleReplicas(ctx, conn)
	return err == nil && len(stale) == 0, err
}

// staleReplicas returns the aggregates of which a service has a replica that differs.
func staleReplicas(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT 'Payment ' || id FROM payments_db.payments o LEFT JOIN orders_db_read.payment_projection r ON r.payment_id = o.id
			WHERE (r.version, r.state) IS DISTINCT FROM (o.version, o.state)
		UNION ALL SELECT 'Product ' || id FROM inventory_db.products o LEFT JOIN orders_db_read.product_projection r ON r.product_id = o.id
			WHERE (r.version, r.sold) IS DISTINCT FROM (o.version, o.sold)
		UNION ALL SELECT 'Order ' || id FROM orders_db.orders o LEFT JOIN inventory_db_read.order_projection r ON r.order_id = o.id
			WHERE (r.version, r.state) IS DISTINCT FROM (o.version, o.state)
		UNION ALL SELECT 'Order ' || id FROM orders_db.orders o LEFT JOIN payments_db_read.order_projection r ON r.order_id = o.id
			WHERE (r.version, r.state) IS DISTINCT FROM (o.version, o.state)`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// ended reports whether all orders are placed, and have ended.
func (s *shop) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	return s.all && s.history.counts["OrderConfirmed"]+s.history.counts["OrderCanceled"] >= len(s.placed)
}

// result collects what has happened.
func (s *stack) result(ctx context.Context, shop *shop) (result, error) {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	r := result{placed: shop.placed, stock: shop.stock, rows: make(map[string]row), events: s.history.events, repeat: s.history.repeat, longer: time.Minute}
	if shop.faults {
		r.longer = recovery
	}
	if len(s.history.wrong) > 0 {
		return r, fmt.Errorf("%d messages could not be read, such as: %s", len(s.history.wrong), s.history.wrong[0])
	}
	conn, err := pgx.Connect(ctx, s.server().DSN("postgres"))
	if err != nil {
		return r, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `SELECT 'Order ' || id, state, version FROM orders_db.orders
		UNION ALL SELECT 'Product ' || id, '', version FROM inventory_db.products
		UNION ALL SELECT 'Payment ' || id, state, version FROM payments_db.payments`)
	if err != nil {
		return r, err
	}
	var key string
	var found row
	_, err = pgx.ForEachRow(rows, []any{&key, &found.state, &found.version}, func() error {
		r.rows[key] = found
		return nil
	})
	if err != nil {
		return r, err
	}
	r.stale, err = staleReplicas(ctx, conn)
	return r, err
}
