package main

import (
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/options/console"
	"example.com/videocatalog/options/cors"
	"example.com/videocatalog/options/oidc"
	"example.com/videocatalog/options/reactions"
	"example.com/videocatalog/options/repair"
	"example.com/videocatalog/options/replay"
)

// parts returns the options of the service. cmd/upgrade --with and --without add and remove them.
func parts() []app.Part {
	return []app.Part{
		console.Part(),
		cors.Part(),
		oidc.Part(),
		reactions.Part(),
		repair.Part(),
		replay.Part(),
	}
}
