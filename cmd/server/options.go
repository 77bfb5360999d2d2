package main

import (
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/options/console"
	"example.com/videocatalog/options/cors"
	"example.com/videocatalog/options/kafka"
	"example.com/videocatalog/options/oidc"
	"example.com/videocatalog/options/reactions"
	"example.com/videocatalog/options/relay-http"
	"example.com/videocatalog/options/repair"
	"example.com/videocatalog/options/replay"
	"example.com/videocatalog/options/tenancy"
	"example.com/videocatalog/options/wal"
)

// options returns the options of the service. cmd/upgrade --with and --without add and remove them.
func options() []app.Option {
	return []app.Option{
		console.Option(),
		cors.Option(),
		kafka.Option(),
		oidc.Option(),
		reactions.Option(),
		relayhttp.Option(),
		repair.Option(),
		replay.Option(),
		tenancy.Option(),
		wal.Option(),
	}
}
