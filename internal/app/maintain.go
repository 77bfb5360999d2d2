package app

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/googleapis/gax-go/v2"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

const (
	partitionsAhead  = 7                    // days of the outbox; maintenance may fail for that long before commands fail
	requestRetention = 25 * time.Hour       // of a request_id; the API promises 24 hours
	auditRetention   = 366 * 24 * time.Hour // of the audit of operators' actions
	// PruneRows is how many rows one transaction deletes. That takes far less than the 8 s
	// that a statement may take. Many small transactions would read the same deleted
	// rows again and again, until a vacuum.
	PruneRows           = 10_000
	pruneQuarantineRows = 1_000 // the same in the quarantine, where a row may have 10 MB
	// maintainInterval and maintainRetry are the average pauses: after a maintenance that
	// succeeded, and after one that failed.
	maintainInterval = time.Hour
	maintainRetry    = time.Minute
	floorInterval    = 4 * time.Second // the average pause between two calls of RaiseFloors
	// maintainTimeout ends a statement whose connection has become silent. The database itself
	// ends a statement after 8 s (docs/database.md).
	maintainTimeout = 10 * time.Second
)

// Step runs a short part of a maintenance, such as one statement. It reports whether to
// call it again immediately.
type Step func(context.Context) (more bool, err error)

// Prune returns the step that calls prune until it deletes fewer than maxRows rows. prune deletes
// rows that are older than olderThan.
func Prune(prune func(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error), olderThan time.Duration) Step {
	return func(ctx context.Context) (more bool, err error) {
		n, err := prune(ctx, olderThan, PruneRows)
		return n == PruneRows, err
	}
}

// allCommandSteps returns the maintenance of the command side.
func (p *Process) allCommandSteps(events *pg.Outbox) []Step {
	steps := []Step{
		func(ctx context.Context) (more bool, err error) { return false, p.maintainPartitions(ctx, events) },
		Prune(events.PruneRequests, requestRetention),
		Prune(events.PruneAudit, auditRetention),
	}
	for _, r := range p.Registered {
		if r.CommandSteps != nil {
			steps = append(steps, r.CommandSteps(p.commandSide.own, p.Retention)...)
		}
	}
	return append(steps, p.commandSteps...)
}

// maintainPartitions creates and drops partitions of the outbox. It must succeed before the first
// write, because the partition of today may be missing after a long stop.
func (p *Process) maintainPartitions(ctx context.Context, events *pg.Outbox) error {
	ctx, cancel := context.WithTimeout(ctx, maintainTimeout)
	defer cancel()
	return events.Maintain(ctx, partitionsAhead, p.cfg.OutboxRetention)
}

// allQuerySteps returns the maintenance of the query side.
func (p *Process) allQuerySteps(inbox *pg.Inbox) []Step {
	steps := []Step{
		func(ctx context.Context) (more bool, err error) {
			n, err := inbox.PruneQuarantine(ctx, p.Retention, pruneQuarantineRows)
			if n > 0 {
				p.Log.WarnContext(ctx, "quarantine: messages deleted that nobody replayed in time", "messages", n, "retention", p.Retention)
			}
			return n == pruneQuarantineRows, err
		},
		Prune(inbox.PruneAudit, auditRetention),
	}
	for _, subscription := range p.cfg.program.subscriptions(roleProjector) {
		steps = append(steps, Prune(func(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
			return inbox.PruneInbox(ctx, subscription.Consumer, olderThan, maxRows)
		}, p.Retention))
		if subscription.QuerySteps != nil {
			steps = append(steps, subscription.QuerySteps(p.QueryPool, p.Retention)...)
		}
	}
	return steps
}

// maintain runs all steps at start and then about every interval, or about a minute after a
// failure, until the process ends. The pauses are random, so that processes seldom run the steps
// at the same time, although that is allowed. The loop must beat once in twice the longer average
// pause: a pause is at most one and a half of it.
func (p *Process) maintain(name string, interval time.Duration, steps ...Step) {
	loop := heartbeat.New(name, 2*max(interval, maintainRetry))
	p.Go(name, func(ctx context.Context) error {
		defer loop.Rest()
		for ctx.Err() == nil {
			pause := interval
			if err := maintainOnce(ctx, loop, steps); err != nil && ctx.Err() == nil {
				pause = maintainRetry
				p.Log.ErrorContext(ctx, "maintenance failed", "err", err)
			}
			_ = gax.Sleep(ctx, pause/2+rand.N(pause)) // the loop checks ctx
		}
		return nil
	}, loop.Check)
}

// maintainOnce runs the steps in order, until one fails.
func maintainOnce(ctx context.Context, loop *heartbeat.Loop, steps []Step) error {
	for _, do := range steps {
		for more := true; more; {
			loop.Beat()
			limited, cancel := context.WithTimeout(ctx, maintainTimeout)
			var err error
			more, err = do(limited)
			cancel()
			if err != nil {
				return err
			}
		}
	}
	return nil
}
