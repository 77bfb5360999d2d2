package main

import "example.com/videocatalog/internal/app"

// registrations returns the registration of each aggregate type, which has a file of its own.
// cmd/entity adds a line for each entity that it makes.
func registrations() []app.Registration {
	return []app.Registration{
		videos(),
	}
}
