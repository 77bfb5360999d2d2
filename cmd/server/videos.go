package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/console" // only console
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
		aggregateType: event.AggregateVideo,
		services: func(b backend) ([]port.Service, error) {
			reads, err := server.Catalog(cfg.catalog, catalog.Over(b.queries), catalog, b.seal, b.metrics)
			commands := store.NewVideos(b.commands, b.wake)
			commands.OnPurge = b.purged
			return []port.Service{server.Videos(commands, b.seal), reads}, err
		},
		subscriptions: []subscription{{
			id: names.TopicOf(event.AggregateVideo).Subscription("catalog"), consumer: cfg.ConsumerName,
			handlers: consumer.Handlers{
				event.AggregateVideo: consumer.Handle(event.Types, event.Decode, catalog.Project),
			},
			prune: catalog.PruneTombstones,
		}},
		comparison: func(commands, queries *pgxpool.Pool) admin.Projection {
			return store.NewVideoComparison(commands, queries)
		},
		aggregates: store.VideoAggregates(),
		repair: func(ctx context.Context) (more bool, err error) {
			n, err := catalog.MoveFutureChanges(ctx, futureRows)
			return n == futureRows, err
		},
		// only console: begin
		console: func(commands, queries *pgxpool.Pool) console.Type {
			return console.Type{Name: event.AggregateVideo, View: "catalog", Source: store.NewVideosSource(commands, queries)}
		},
		// only console: end
	}
}

// futureRows is how many rows one transaction moves from the future.
const futureRows = 1000
