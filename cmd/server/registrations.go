package main

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
)

// registrations returns the registration of each aggregate type, which has a file of its own.
// cmd/entity adds a line for each entity that it makes. queries is the pool of the query side,
// or nil if the process does not use it.
func registrations(queries *pgxpool.Pool) []app.Registration {
	return []app.Registration{
		videos(queries),
	}
}
