package pg

import "github.com/jackc/pgx/v5/pgxpool"

// Base returns the connections, and the name of the aggregate type, for an option.
func (s CommandSide) Base() (pool *pgxpool.Pool, aggregateType string) {
	return s.pool, s.aggregateType
}
