package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/envelope"
)

// event is what a service has published.
type event struct {
	ID        string
	Type      string // OrderReserved
	Aggregate string // its id
	Version   int64
	At        time.Time // when it was published first
	State     state
	Order     string // the id of the order that it is about
}

// state is the content of an event: of an order, a product or a payment. A product has no State.
type state struct {
	State       string   `json:"state"`
	ProductID   string   `json:"productId"`
	Quantity    int64    `json:"quantity"`
	AmountCents int64    `json:"amountCents,string"`
	Available   int64    `json:"available"`
	Reserved    int64    `json:"reserved"`
	Sold        int64    `json:"sold"`
	OpenOrders  []string `json:"openOrders"`
	OrderID     string   `json:"orderId"`
	Outcome     string   `json:"outcome"`
}

// history is what went through Pub/Sub. It is safe for concurrent use.
type history struct {
	types map[string]protoreflect.MessageDescriptor // of events, by aggregate type

	mu     sync.Mutex
	events []event             // guarded by mu: in the order of their publication, each once
	seen   map[string]struct{} // guarded by mu: ids of events
	orders map[string][]event  // guarded by mu: by the order that they are about
	counts map[string]int      // guarded by mu: events, by type
	repeat int                 // guarded by mu: messages of events that were published before
	wrong  []string            // guarded by mu: what could not be read
}

// newHistory reads the contracts of the services.
func newHistory(ctx context.Context, dir string) (*history, error) {
	h := &history{types: make(map[string]protoreflect.MessageDescriptor), seen: make(map[string]struct{}), orders: make(map[string][]event), counts: make(map[string]int)}
	for name, contract := range map[string]string{"order": "orders", "product": "inventory", "payment": "payments"} {
		root := filepath.Join(dir, contract)
		compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{
			filepath.Join(root, "api", "proto"), filepath.Join(root, "third_party", "kit", "protos"),
		}})}
		files, err := compiler.Compile(ctx, name+"/v1/"+name+"_event.proto")
		if err != nil {
			return nil, fmt.Errorf("read the contract of %s: %w", contract, err)
		}
		h.types[name] = files[0].Messages().Get(0)
	}
	return h, nil
}

// observe records the events that services publish.
func (h *history) observe(e pubsublocal.Event) {
	if e.Kind != pubsublocal.Published {
		return
	}
	var m pubsubpb.PubsubMessage
	err := proto.Unmarshal(e.Message, &m)
	var made event
	if err == nil {
		made, err = h.read(&m)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.wrong = append(h.wrong, err.Error())
		return
	}
	if _, ok := h.seen[made.ID]; ok {
		h.repeat++
		return
	}
	h.seen[made.ID] = struct{}{}
	h.events = append(h.events, made)
	h.counts[made.Type]++
	if made.Order != "" {
		h.orders[made.Order] = append(h.orders[made.Order], made)
	}
}

// kinds returns how many events were published, by their kind.
func (h *history) kinds() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := make(map[string]int)
	for typ, events := range h.counts {
		n[kind(event{Type: typ})] += events
	}
	return n
}

// read reads an event from its message.
func (h *history) read(m *pubsubpb.PubsubMessage) (event, error) {
	attributes := m.GetAttributes()
	e := event{
		ID: attributes[envelope.AttrEventID], Type: attributes[envelope.AttrEventType],
		Aggregate: attributes[envelope.AttrAggregateID], At: m.GetPublishTime().AsTime(),
	}
	name := attributes[envelope.AttrAggregateType]
	if h.types[name] == nil {
		return e, fmt.Errorf("event %s has the unknown aggregate type %q", e.ID, name)
	}
	if _, err := fmt.Sscan(attributes[envelope.AttrVersion], &e.Version); err != nil {
		return e, fmt.Errorf("version of %s: %w", e.ID, err)
	}
	payload := dynamicpb.NewMessage(h.types[name])
	if err := proto.Unmarshal(m.GetData(), payload); err != nil {
		return e, fmt.Errorf("decode %s: %w", e.ID, err)
	}
	text, err := protojson.Marshal(payload)
	if err != nil {
		return e, err
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return e, err
	}
	if err := json.Unmarshal(parts[name], &e.State); err != nil {
		return e, fmt.Errorf("content of %s: %w", e.ID, err)
	}
	e.State.State = strings.ToLower(strings.TrimPrefix(e.State.State, "STATE_"))
	e.State.Outcome = strings.ToLower(strings.TrimPrefix(e.State.Outcome, "OUTCOME_"))
	switch {
	case name != "product":
		e.Order = e.Aggregate // a payment has the id of its order
	case e.Type == "ProductUpdated":
		e.Order = e.State.OrderID
	}
	return e, nil
}
