package tenancy

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/transport"
)

// tables returns the tables with tenant_id.
const tables = `SELECT c.oid::regclass::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relnamespace::regnamespace::text IN ('video_catalog', 'video_catalog_read') AND c.relkind IN ('r', 'p')
		AND a.attname = 'tenant_id' AND NOT a.attisdropped ORDER BY 1`

// mistakes returns what opens a table with tenant_id to the user of calls, or closes it to others. It runs as that user.
//
//go:embed queries/mistakes.sql
var mistakes string

// start refuses a process whose calls could see the rows of another tenant.
func (s *settings) start(ctx context.Context, process *app.Process) error {
	if !slices.Contains(process.Roles, "api") {
		return nil
	}
	if process.CommandPool == process.QueryPool && s.Queries != "" && s.Queries != s.Commands {
		return app.UsageError(errors.New("TENANCY_READ_DATABASE_URL differs from TENANCY_DATABASE_URL, so READ_DATABASE_URL must differ from DATABASE_URL"))
	}
	for side, loops := range map[string]*pgxpool.Pool{transport.SideCommands: process.CommandPool, transport.SideQueries: process.QueryPool} {
		err := process.WhenAvailable(ctx, func(ctx context.Context) error {
			return pg.Wrap(s.checkSide(ctx, side, loops), "tenants of the %s", side)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkSide checks the database of a side, whose loops use a pool.
func (s *settings) checkSide(ctx context.Context, side string, loops *pgxpool.Pool) error {
	if s.url(side) == "" {
		found, err := texts(ctx, loops, tables)
		if err == nil && len(found) > 0 {
			err = app.UsageError(fmt.Errorf("TENANCY_DATABASE_URL is required: %q have tenant_id", found))
		}
		return err
	}
	calls, err := db.Open(ctx, s.url(side), 1, nil)
	if err != nil {
		return err
	}
	defer calls.Close()
	own, err := texts(ctx, loops, "SELECT unnest(ARRAY[current_user::text, current_database() || ' of the server ' || system_identifier]) FROM pg_control_system()")
	if err != nil {
		return err
	}
	found, err := texts(ctx, calls, mistakes, own[0], own[1])
	if len(found) > 0 {
		err = app.UsageError(fmt.Errorf("mistakes in the database:\n%s", strings.Join(found, "\n")))
	}
	return err
}

// texts returns the rows of a query, each with a text.
func texts(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]string, error) {
	rows, _ := pool.Query(ctx, sql, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
