package app

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

const (
	// partitionsAhead is how many days of the outbox have their partition in advance.
	// Maintenance may fail for that long before a person must act.
	partitionsAhead = 7
	// requestRetention is how long CreateVideo recognizes a request_id. The API promises 24
	// hours.
	requestRetention = 25 * time.Hour
	// PruneRows is how many rows one transaction deletes. That takes far less than the 8 s
	// that a transaction may take. Each transaction begins at the oldest row, and reads
	// past the rows that were deleted since the last vacuum. Many small transactions would
	// read those rows again and again.
	PruneRows = 10_000
	// pruneQuarantineRows is the same for the quarantine, where a row may have 10 MB.
	pruneQuarantineRows = 1_000
	// maintainInterval and maintainRetry are the average pauses: after a maintenance that
	// succeeded, and after one that failed.
	maintainInterval = time.Hour
	maintainRetry    = time.Minute
	// maintainTimeout is how long one statement may take. The database itself ends a
	// statement after 8 s (docs/database.md). So this timeout ends only statements on a
	// database that has become unreachable. TCP would notice that after 15 minutes, or
	// after two hours.
	maintainTimeout = time.Minute
	// wakePause is how long a maintenance that is woken waits for more of the same work.
	wakePause = 5 * time.Second
)

// maintenanceLoop returns the heartbeat of a maintenance. Its interval is the longest pause
// plus half an hour for the work.
func maintenanceLoop(name string) *heartbeat.Loop {
	return heartbeat.New("maintenance of the "+name, maintainInterval*2)
}

// Step runs one statement of a maintenance. It reports whether to call it again
// immediately.
type Step func(context.Context) (more bool, err error)

// prepareOutbox creates the partitions before the first write, because today's may be
// missing after a long stop. It tries again until config.databaseWait is over.
func prepareOutbox(ctx context.Context, events *store.Outbox, cfg config) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.databaseWait)
	defer cancel()
	return untilItWorks(ctx, func(ctx context.Context) error {
		_, _, err := events.Maintain(ctx, partitionsAhead, cfg.OutboxRetention)
		return err
	})
}

// maintainOutbox creates and drops partitions, deletes old requests and entries of the audit,
// and runs further steps, until ctx ends. purged wakes it after a purge. Any number of
// processes may run it at once.
func maintainOutbox(ctx context.Context, events *store.Outbox, cfg config, purged <-chan struct{}, log *slog.Logger, loop *heartbeat.Loop, further ...Step) error {
	steps := append([]Step{func(ctx context.Context) (more bool, err error) {
		created, dropped, err := events.Maintain(ctx, partitionsAhead, cfg.OutboxRetention)
		if created+dropped > 0 {
			log.InfoContext(ctx, "outbox: partitions maintained", "created", created, "dropped", dropped)
		}
		return false, err
	}, func(ctx context.Context) (more bool, err error) {
		n, err := events.PruneRequests(ctx, requestRetention, PruneRows)
		return n == PruneRows, err
	}, pruneAudit(events, cfg.AuditRetention),
	}, further...)
	return maintain(ctx, log, loop, purged, steps...)
}

// tombstoneRetention returns how long the tombstone of a purged aggregate stays. Until then
// something may bring its content back: an event that comes late, for InboxRetention, and a
// message that was quarantined then, for as long again. A client that resumes a watch must
// still be told that the entry is gone.
func tombstoneRetention(cfg config) time.Duration {
	const resumes = 30 * 24 * time.Hour // server.ResumeTokenAge
	return 2*cfg.InboxRetention + resumes
}

// pruneAudit returns the step that deletes old entries of the audit of a side.
func pruneAudit(side interface {
	PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error)
}, retention time.Duration,
) Step {
	return func(ctx context.Context) (more bool, err error) {
		n, err := side.PruneAudit(ctx, retention, PruneRows)
		return n == PruneRows, err
	}
}

// maintainInbox deletes old event ids, messages in quarantine, entries of the audit and
// tombstones, until ctx ends.
func maintainInbox(ctx context.Context, inbox *store.Inbox, subscribed []Subscription, cfg config, log *slog.Logger, loop *heartbeat.Loop) error {
	steps := []Step{func(ctx context.Context) (more bool, err error) {
		n, err := inbox.PruneQuarantine(ctx, cfg.InboxRetention, pruneQuarantineRows)
		if n > 0 {
			log.WarnContext(ctx, "quarantine: messages deleted that nobody replayed in time", "messages", n, "retention", cfg.InboxRetention)
		}
		return n == pruneQuarantineRows, err
	}, pruneAudit(inbox, cfg.AuditRetention)}
	for _, s := range subscribed {
		steps = append(steps, func(ctx context.Context) (more bool, err error) {
			n, err := inbox.PruneInbox(ctx, s.Consumer, cfg.InboxRetention, PruneRows)
			return n == PruneRows, err
		})
		if s.Prune != nil {
			steps = append(steps, func(ctx context.Context) (more bool, err error) {
				n, err := s.Prune(ctx, tombstoneRetention(cfg), PruneRows)
				return n == PruneRows, err
			})
		}
	}
	return maintain(ctx, log, loop, nil, steps...)
}

// maintain runs all steps at start and then about every hour, or about a minute after a
// failure. The pauses are random, so the processes of a service do not run it at the same
// time. A value from wake ends a pause.
func maintain(ctx context.Context, log *slog.Logger, loop *heartbeat.Loop, wake <-chan struct{}, steps ...Step) error {
	defer loop.Rest()
	for {
		pause := maintainInterval
		if err := maintainOnce(ctx, loop, steps); err != nil && ctx.Err() == nil {
			pause = maintainRetry
			log.ErrorContext(ctx, "maintenance failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause/2 + rand.N(pause)):
		case <-wake:
			sleep(ctx, wakePause)
		}
	}
}

// maintainOnce runs the steps in order, until one fails.
func maintainOnce(ctx context.Context, loop *heartbeat.Loop, steps []Step) error {
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

// inTime runs a step with the timeout maintainTimeout.
func inTime(ctx context.Context, do Step) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, maintainTimeout)
	defer cancel()
	return do(ctx)
}
