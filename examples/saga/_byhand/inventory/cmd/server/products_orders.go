package main

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"saga.example.com/inventory/internal/consumer"
	"saga.example.com/inventory/internal/domain"
	"saga.example.com/inventory/internal/event"
	"saga.example.com/inventory/internal/names"
	"saga.example.com/inventory/internal/server"
	"saga.example.com/inventory/internal/store"
)

// productsOnOrders registers how products react to the events of orders.
func productsOnOrders(config, *pgxpool.Pool) registration {
	return registration{
		aggregateType: event.AggregateProduct,
		reactions: func(b backend) []subscription {
			products := store.NewProducts(b.commands, b.wake)
			react := store.ReactProducts(products, domain.ProductOrderReaction(), server.Stamp)
			return []subscription{{
				id: names.TopicOf(event.AggregateOrder).Subscription("inventory-product-order"), consumer: "inventory-product-order",
				handlers: consumer.Handlers{
					event.AggregateOrder: consumer.React(event.OrderTypes, event.DecodeOrder, react),
				},
			}}
		},
	}
}
