package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
)

// database is the pools of the two sides, which may be the same.
type database struct{ video, catalog pools }

// pools are the connections to one database: those of API calls, nil where none
// are served, and our own, of the loops, the probes and everything else. As many
// calls as there may be leave the loops what they need.
type pools struct{ calls, own *pgxpool.Pool }

// openDatabase connects to both sides, waits for them a while, and refuses a
// schema that is older than this build needs. calls is how many connections of
// each are for API calls. tracer sees every statement; it may be nil.
func openDatabase(ctx context.Context, cfg config, calls int32, tracer pgx.QueryTracer) (d database, err error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.DatabaseWait)
	defer cancel()
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.video, err = openPools(ctx, cfg.DatabaseURL, calls, cfg.DatabaseMaxConns-calls, tracer); err != nil {
		return d, fmt.Errorf("DATABASE_URL: %w", err)
	}
	d.catalog = d.video
	if cfg.CatalogDatabaseURL == cfg.DatabaseURL {
		return d, nil
	}
	if d.catalog, err = openPools(ctx, cfg.CatalogDatabaseURL, calls, cfg.DatabaseMaxConns-calls, tracer); err != nil {
		return d, fmt.Errorf("CATALOG_DATABASE_URL: %w", err)
	}
	return d, nil
}

// openPools answers what it has opened also with an error.
func openPools(ctx context.Context, url string, calls, own int32, tracer pgx.QueryTracer) (p pools, err error) {
	sizes := []int32{own}
	if calls > 0 {
		sizes = append(sizes, calls)
	}
	all, err := db.OpenAll(ctx, url, tracer, sizes...)
	if err != nil {
		return p, err
	}
	p.own = all[0]
	if calls > 0 {
		p.calls = all[1]
	}
	for {
		err := db.Check(ctx, p.own)
		if err == nil && calls > 0 {
			err = p.calls.Ping(ctx) // so that the first call has a connection
		}
		if err == nil || errors.Is(err, db.ErrSchemaTooOld) || !sleep(ctx, 200*time.Millisecond) {
			return p, err
		}
	}
}

// close ends the connections. Where the database is gone without a word it would
// wait for those whose last statement was given up: see db.Open.
func (d database) close() {
	closeInTime(func() {
		var closed sync.WaitGroup
		for _, pool := range d.all() {
			closed.Go(pool.Close)
		}
		closed.Wait()
	})
}

// all answers the pools by name, each once.
func (d database) all() map[string]*pgxpool.Pool {
	pools := map[string]*pgxpool.Pool{
		"catalog": d.catalog.own, "catalog.calls": d.catalog.calls,
		"video": d.video.own, "video.calls": d.video.calls,
	}
	if d.catalog == d.video {
		delete(pools, "catalog")
		delete(pools, "catalog.calls")
	}
	maps.DeleteFunc(pools, func(_ string, pool *pgxpool.Pool) bool { return pool == nil })
	return pools
}

// ping tells whether the databases answer.
func (d database) ping(ctx context.Context) error {
	if err := d.video.own.Ping(ctx); err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	if d.catalog == d.video {
		return nil
	}
	if err := d.catalog.own.Ping(ctx); err != nil {
		return fmt.Errorf("ping catalog database: %w", err)
	}
	return nil
}
