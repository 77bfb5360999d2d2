// Command server is the program of the service. One process runs the API, the outbox
// publisher, the projector and what options add, or only the roles of ROLES. `server help` lists
// the commands; the default is serve. The settings come from the environment: docs/settings.md lists them.
package main

import "example.com/videocatalog/internal/app"

// version is set by the linker.
var version = "dev"

func main() { program().Main() }

func program() app.Program {
	return app.Program{
		Version: version, Registrations: registrations(), Options: options(),
		Limits: app.Limits{}, // the place for a limit of this service that is not the default
	}
}
