// Package replay lets consumers receive state that they have lost or have never had.
//
// The command seek makes Pub/Sub deliver its retained messages again, to a projection of this
// service. The command backfill publishes the present state of every aggregate of a type,
// marked as a snapshot, for consumers in other services.
package replay

import "example.com/videocatalog/internal/app"

// Option returns the option.
func Option() app.Option {
	return app.Option{
		Name:        "replay",
		Subcommands: map[string]app.Subcommand{"seek": seek, "backfill": runBackfill},
		Help: `  server seek SUBSCRIPTION TIME        apply the events that Pub/Sub has retained since TIME (RFC 3339) once more
  server backfill TYPE                 publish the state of every aggregate of a type, for a new consumer
         --after ID                    continue behind what an interrupted command has printed
`,
	}
}
