package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

const (
	// partitionsAhead is how many days of the outbox have their partition
	// before they come; so long may maintenance fail before anybody must act.
	partitionsAhead = 7
	// requestRetention is how long CreateVideo recognizes a request_id; the API
	// promises 24 hours.
	requestRetention = 25 * time.Hour
	// pruneRows is how much one transaction deletes: locks stay short, and
	// vacuum keeps up.
	pruneRows        = 1000
	maintainInterval = time.Hour
)

// maintenanceLoop is the heart of a maintenance: the longest pause, and half an
// hour for the work.
func maintenanceLoop(name string) *heartbeat.Loop {
	return heartbeat.New("maintenance of the "+name, maintainInterval*2)
}

// maintainOutbox makes and drops partitions and forgets old requests, until
// ctx ends. Any number of processes may do so at once.
func maintainOutbox(ctx context.Context, videos *store.Videos, retention time.Duration, log *slog.Logger, loop *heartbeat.Loop) error {
	return maintain(ctx, log, loop, func(ctx context.Context) error {
		created, dropped, err := videos.MaintainOutbox(ctx, partitionsAhead, retention)
		if err != nil {
			return err
		}
		if created+dropped > 0 {
			log.InfoContext(ctx, "outbox: partitions maintained", "created", created, "dropped", dropped)
		}
		return prune(ctx, loop, func(ctx context.Context) (int64, error) {
			return videos.PruneRequests(ctx, time.Now().Add(-requestRetention), pruneRows)
		})
	})
}

// maintainInbox forgets old event ids until ctx ends.
func maintainInbox(ctx context.Context, catalog *store.Catalog, consumer string, retention time.Duration, log *slog.Logger, loop *heartbeat.Loop) error {
	return maintain(ctx, log, loop, func(ctx context.Context) error {
		return prune(ctx, loop, func(ctx context.Context) (int64, error) {
			return catalog.PruneInbox(ctx, consumer, time.Now().Add(-retention), pruneRows)
		})
	})
}

// maintain does something at start and then about every hour; the processes of
// a service spread out by themselves.
func maintain(ctx context.Context, log *slog.Logger, loop *heartbeat.Loop, do func(context.Context) error) error {
	defer loop.Rest()
	for {
		loop.Beat()
		if err := do(ctx); err != nil && ctx.Err() == nil {
			log.ErrorContext(ctx, "maintenance failed", "err", err)
		}
		if !sleep(ctx, maintainInterval/2+rand.N(maintainInterval)) {
			return nil
		}
	}
}

// prune deletes small batch after small batch until one is not full.
func prune(ctx context.Context, loop *heartbeat.Loop, batch func(context.Context) (int64, error)) error {
	for {
		loop.Beat()
		n, err := batch(ctx)
		if err != nil || n < pruneRows {
			return err
		}
	}
}
