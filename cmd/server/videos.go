package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/transport"
)

// videos registers VideoService with the commands, CatalogService with the queries, and the
// subscription that fills the catalog.
func videos() app.Registration {
	changes := store.NewChanges() // of this process
	return app.Registration{
		AggregateType: event.AggregateVideo,
		Table:         "videos",
		Services: func(b app.Backend) ([]transport.Service, error) {
			// Waiting calls are at most half of all calls, and end in half of the drain timeout.
			waits := server.CatalogConfig{MaxWaiting: b.Transport.MaxCalls / 2, DrainWait: b.Transport.DrainTimeout / 2}
			reads := server.Catalog(waits, changes.Catalog(b.QueryPool), changes)
			return []transport.Service{server.Videos(store.NewVideos(b.CommandPool, b.Wake)), reads}, nil
		},
		Subscriptions: []app.Subscription{{
			ID: names.VideoTopic.Subscription("catalog"), Consumer: "catalog",
			Handlers: func(b app.Backend) consumer.Handlers {
				return consumer.Handlers{
					event.AggregateVideo: consumer.Handle(event.DecodeVideo, changes.Catalog(b.QueryPool).Project),
				}
			},
			QuerySteps: func(queries *pgxpool.Pool, retention time.Duration) []app.Step {
				return []app.Step{app.Prune(changes.Catalog(queries).PruneTombstones, server.TombstoneRetention(retention))}
			},
		}},
		CommandSteps: func(commands *pgxpool.Pool, retention time.Duration) []app.Step {
			eraser := store.NewEraser(commands)
			return []app.Step{
				func(ctx context.Context) (more bool, err error) { return eraser.Erase(ctx, app.PruneRows) },
				app.Prune(eraser.PruneTombstones, server.TombstoneRetention(retention)),
			}
		},
	}
}
