// Command server is the program of the service. One process runs the API, the outbox
// publisher, the projector and what options add, or only those that ROLES names. `server help` lists
// the commands and the settings. The default command is serve, and the settings come from the
// environment.
package main

import "example.com/videocatalog/internal/app"

// version is set by the linker.
var version = "dev"

func main() { program().Main() }

func program() app.Program {
	return app.Program{
		Version: version, Registrations: registrations(), Parts: parts(),
		Config: app.Config{}, // the place for a limit of this service that is not the default
	}
}
