package main

import (
	"saga.example.com/inventory/internal/app"
	"saga.example.com/inventory/internal/consumer"
	"saga.example.com/inventory/internal/domain"
	"saga.example.com/inventory/internal/event"
	"saga.example.com/inventory/internal/names"
	"saga.example.com/inventory/internal/store"
	"saga.example.com/inventory/options/reactions"
)

// productsOnOrders registers how products react to the events of orders.
func productsOnOrders() app.Registration {
	subscription := app.Subscription{
		ID: names.OrderTopic.Subscription("inventory-product-order"), Consumer: "inventory-product-order",
		Handlers: func(b app.Backend) consumer.Handlers {
			products := store.NewProducts(b.CommandPool, b.Wake)
			return consumer.Handlers{
				event.AggregateOrder: reactions.Handler(event.DecodeOrder, products, domain.ProductOrderConcerns, domain.ProductOrderReaction),
			}
		},
	}
	return app.Registration{AggregateType: event.AggregateProduct, Options: map[string]any{reactions.Name: reactions.Of{Subscriptions: []app.Subscription{subscription}}}}
}
