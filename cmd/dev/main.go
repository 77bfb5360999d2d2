// Command dev runs the whole service on this machine: PostgreSQL, Pub/Sub, the schema and the server.
//
//	go run ./cmd/dev            start, and run until Ctrl-C
//	go run ./cmd/dev --fresh    start with empty data
//
// go run ./cmd/dev --help lists all flags and settings.
package main

import (
	"example.com/servicekit/dev"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/topics"
)

func main() { dev.Main(config()) }

func config() dev.Config {
	return dev.Config{
		Name:   names.Service,
		Server: "./cmd/server",
		Topics: topics.All,
		Parts:  parts(),
		Try:    []string{`curl -s http://HOST/v1/videos -d '{"title": "Ran"}'`, "curl -s http://HOST/v1/videos"},
	}
}

// parts returns the programs beside the server, each in the file of its name. To remove one, delete its file and its line here.
func parts() []dev.Part {
	return []dev.Part{
		console(),
		kafka(),
		observe(),
		tenancy(),
	}
}
