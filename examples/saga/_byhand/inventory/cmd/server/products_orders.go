package main

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"saga.example.com/inventory/internal/app"
	"saga.example.com/inventory/internal/consumer"
	"saga.example.com/inventory/internal/domain"
	"saga.example.com/inventory/internal/event"
	"saga.example.com/inventory/internal/names"
	"saga.example.com/inventory/internal/store"
	"saga.example.com/inventory/options/reactions"
)

// productsOnOrders registers how products react to the events of orders.
func productsOnOrders(*pgxpool.Pool) app.Registration {
	subscriptions := func(b app.Backend) []app.Subscription {
		products := store.NewProducts(b.Commands, b.Wake)
		return []app.Subscription{{
			ID: names.OrderTopic.Subscription("inventory-product-order"), Consumer: "inventory-product-order",
			Handlers: consumer.Handlers{
				event.AggregateOrder: reactions.Handler(event.DecodeOrder, products, domain.ProductOrderConcerns, domain.ProductOrderReaction),
			},
		}}
	}
	return app.Registration{AggregateType: event.AggregateProduct, Parts: map[string]any{reactions.Name: reactions.Of{Subscriptions: subscriptions}}}
}
