package main

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
)

// videos registers the videos: VideoService has their commands, CatalogService the queries
// of the catalog, which the subscription fills.
func videos(cfg config, queries *pgxpool.Pool) registration {
	catalog := store.NewCatalog(queries)
	return registration{
		services: func(b backend) ([]port.Service, error) {
			reads, err := server.Catalog(cfg.catalog, catalog.Over(b.queries), catalog, b.seal, b.metrics)
			return []port.Service{server.Videos(store.NewVideos(b.commands, b.wake), b.seal), reads}, err
		},
		subscriptions: []subscription{{
			id: names.TopicOf(event.AggregateVideo).Subscription("catalog"), consumer: cfg.ConsumerName,
			handlers: consumer.Handlers{
				event.AggregateVideo: consumer.Handle(event.Types, event.Decode, catalog.Project),
			},
		}},
	}
}
