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
		services: func(b *backend) ([]port.Service, error) {
			if b == nil {
				return []port.Service{server.Videos(nil), server.Catalog(nil)}, nil
			}
			reads, err := server.NewCatalogService(cfg.catalog, catalog.Over(b.queries), catalog, b.seal, b.metrics)
			if err != nil {
				return nil, err
			}
			writes := server.NewVideoService(store.NewVideos(b.commands, b.wake), b.seal)
			return []port.Service{server.Videos(writes), server.Catalog(reads)}, nil
		},
		subscriptions: []subscription{{
			id: names.TopicOf(event.AggregateVideo).Subscription("catalog"), consumer: cfg.ConsumerName,
			handlers: consumer.Handlers{
				event.AggregateVideo: consumer.Handle(event.Types, event.Decode, catalog.Project),
			},
		}},
	}
}
