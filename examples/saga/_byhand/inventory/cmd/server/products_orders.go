package main

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"saga.example.com/inventory/internal/app"
	"saga.example.com/inventory/internal/consumer"
	"saga.example.com/inventory/internal/domain"
	"saga.example.com/inventory/internal/event"
	"saga.example.com/inventory/internal/names"
	"saga.example.com/inventory/internal/server"
	"saga.example.com/inventory/internal/store"
)

// productsOnOrders registers how products react to the events of orders.
func productsOnOrders(*pgxpool.Pool) app.Registration {
	return app.Registration{
		AggregateType: event.AggregateProduct,
		Reactions: func(b app.Backend) []app.Subscription {
			products := store.NewProducts(b.Commands, b.Wake)
			react := store.ReactProducts(products, domain.ProductOrderReaction(), server.Stamp)
			return []app.Subscription{{
				ID: names.OrderTopic.Subscription("inventory-product-order"), Consumer: "inventory-product-order",
				Handlers: consumer.Handlers{
					event.AggregateOrder: consumer.React(event.OrderTypes, event.DecodeOrder, react),
				},
			}}
		},
	}
}
