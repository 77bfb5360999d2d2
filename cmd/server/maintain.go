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
	// pruneRows is how much one transaction deletes, far below the 8 s that it may take. Each begins at the oldest row and
	// reads past what was deleted since the last vacuum, so many small ones would read that again and again.
	pruneRows = 10_000
	// pruneQuarantineRows is the same where a row may have 10 MB.
	pruneQuarantineRows = 1_000
	// maintainInterval and maintainRetry are the pauses after a maintenance and
	// after one that failed, on average.
	maintainInterval = time.Hour
	maintainRetry    = time.Minute
	// maintainTimeout is how long one statement may take: more than the database
	// lets it, 8 s (docs/database.md), so that it ends only what waits for a
	// database that is gone without a word. TCP takes a quarter of an hour to
	// notice, or two hours.
	maintainTimeout = time.Minute
)

// maintenanceLoop is the heart of a maintenance: the longest pause, and half an
// hour for the work.
func maintenanceLoop(name string) *heartbeat.Loop {
	return heartbeat.New("maintenance of the "+name, maintainInterval*2)
}

// step is a statement of a maintenance, which reports whether to call it again
// at once.
type step func(context.Context) (more bool, err error)

// prepareOutbox makes the partitions before the first write, because after a
// long stop today's may be missing. It is tried again until config.databaseWait is over.
func prepareOutbox(ctx context.Context, events *store.Outbox, cfg config) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.databaseWait)
	defer cancel()
	return untilItWorks(ctx, func(ctx context.Context) error {
		_, _, err := events.Maintain(ctx, partitionsAhead, cfg.OutboxRetention)
		return err
	})
}

// maintainOutbox makes and drops partitions and forgets old requests, until
// ctx ends. Any number of processes may do so at once.
func maintainOutbox(ctx context.Context, events *store.Outbox, retention time.Duration, log *slog.Logger, loop *heartbeat.Loop) error {
	return maintain(ctx, log, loop, func(ctx context.Context) (more bool, err error) {
		created, dropped, err := events.Maintain(ctx, partitionsAhead, retention)
		if created+dropped > 0 {
			log.InfoContext(ctx, "outbox: partitions maintained", "created", created, "dropped", dropped)
		}
		return false, err
	}, func(ctx context.Context) (more bool, err error) {
		n, err := events.PruneRequests(ctx, requestRetention, pruneRows)
		return n == pruneRows, err
	})
}

// maintainInbox forgets old event ids, and old messages in quarantine, until
// ctx ends.
func maintainInbox(ctx context.Context, inbox *store.Inbox, subscribed []subscription, retention time.Duration, log *slog.Logger, loop *heartbeat.Loop) error {
	steps := []step{func(ctx context.Context) (more bool, err error) {
		n, err := inbox.PruneQuarantine(ctx, retention, pruneQuarantineRows)
		if n > 0 {
			log.WarnContext(ctx, "quarantine: messages deleted that nobody replayed in time", "messages", n, "retention", retention)
		}
		return n == pruneQuarantineRows, err
	}}
	for _, s := range subscribed {
		steps = append(steps, func(ctx context.Context) (more bool, err error) {
			n, err := inbox.PruneInbox(ctx, s.consumer, retention, pruneRows)
			return n == pruneRows, err
		})
	}
	return maintain(ctx, log, loop, steps...)
}

// maintain does all steps at start and then about every hour, or about a minute
// after one has failed; the processes of a service spread out by themselves.
func maintain(ctx context.Context, log *slog.Logger, loop *heartbeat.Loop, steps ...step) error {
	defer loop.Rest()
	for {
		pause := maintainInterval
		if err := maintainOnce(ctx, loop, steps); err != nil && ctx.Err() == nil {
			pause = maintainRetry
			log.ErrorContext(ctx, "maintenance failed", "err", err)
		}
		if !sleep(ctx, pause/2+rand.N(pause)) {
			return nil
		}
	}
}

// maintainOnce does one step after the other, until one fails.
func maintainOnce(ctx context.Context, loop *heartbeat.Loop, steps []step) error {
	for _, do := range steps {
		for more := true; more; {
			loop.Beat()
			var err error
			if more, err = inTime(ctx, do); err != nil {
				return err
			}
		}
	}
	return nil
}

// inTime does a step, and gives it up when it hangs.
func inTime(ctx context.Context, do step) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, maintainTimeout)
	defer cancel()
	return do(ctx)
}
