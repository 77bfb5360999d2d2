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

// playlists registers the playlists, with a topic and a subscription of their own.
func playlists(_ config, queries *pgxpool.Pool) registration {
	views := store.NewPlaylistViews(queries)
	return registration{
		services: func(b backend) ([]port.Service, error) {
			writes := server.Playlists(store.NewPlaylists(b.commands, b.wake))
			return []port.Service{writes, server.PlaylistViews(store.NewPlaylistViews(b.queries))}, nil
		},
		subscriptions: []subscription{{
			id: names.TopicOf(event.AggregatePlaylist).Subscription("playlists"), consumer: "playlists",
			handlers: consumer.Handlers{
				event.AggregatePlaylist: consumer.Handle(event.PlaylistTypes, event.DecodePlaylist, views.Project),
			},
		}},
	}
}
