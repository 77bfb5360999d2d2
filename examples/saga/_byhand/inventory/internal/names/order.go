package names

// OrderTopic has the events of orders, which another service owns.
var OrderTopic = add(Topic{
	Name:           "orders.order.events",
	AggregateTypes: []string{"order"},
	Schema:         "api/proto/order/v1/order_event.proto",
	Consumers:      []string{"inventory-order", "inventory-product-order"},
	Foreign:        true,
})
