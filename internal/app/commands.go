package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/googleapis/gax-go/v2"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
)

func migrate(ctx context.Context, p *Process, _ []string, stdout io.Writer) error {
	n, err := db.Migrate(ctx, p.cfg.DatabaseURL, p.Log, p.cfg.program.migrations()...)
	if err == nil {
		_, err = fmt.Fprintf(stdout, "the schema is up to date (%d migrations run)\n", n)
	}
	return err
}

func drain(ctx context.Context, p *Process, _ []string, stdout io.Writer) error {
	published, left, err := p.Drain(ctx)
	if err == nil {
		text := fmt.Sprintf("published %d events; %d aggregates are blocked, %d of them parked; %s", published, left.Blocked, left.Parked, left.Note)
		_, err = fmt.Fprintln(stdout, strings.TrimSuffix(text, "; "))
	}
	return err
}

// Drain publishes the events that are pending at its start, except events of blocked aggregates.
// If a publisher has died, Drain waits until the leases of its lanes end, unless they have only snapshots. If a pass fails or finds
// the broker unavailable, Drain stops and returns the error. It also ends when less than half a lease is left until the deadline of ctx, the time of a pass.
func (p *Process) Drain(ctx context.Context) (published int, left pg.Backlog, err error) {
	if err := p.OpenCommandSide(ctx); err != nil {
		return 0, left, err
	}
	events := pg.NewOutbox(p.CommandPool)
	publisher, err := p.newPublisher(ctx, events)
	if err != nil {
		return 0, left, err
	}
	const interval = 200 * time.Millisecond // of measurements
	start := time.Now()
	deadline, limited := ctx.Deadline()
	for measured := start; ; {
		result, err := publisher.RunOnce(ctx, p.Limits.Outbox.Batch)
		published += result.Published
		if err = cmp.Or(err, result.Outage, ctx.Err()); err != nil {
			return published, left, fmt.Errorf("after %d events: %w", published, err)
		}
		if result.Claimed && time.Since(measured) < interval {
			continue
		}
		if left, err = events.Measure(ctx, 10_000); err != nil {
			return published, left, err
		}
		// Events may be appended as fast as they are published. Later ones are not part of this drain.
		if left.Oldest.IsZero() && !result.Claimed || left.Oldest.After(start) || limited && time.Until(deadline) < p.Limits.Outbox.Lease/2 {
			return published, left, nil
		}
		measured = time.Now()
		if !result.Claimed { // another process may have a lease
			_ = gax.Sleep(ctx, interval) // the next pass checks ctx
		}
	}
}

// operator runs one of the subcommands of package operate, also while the database of one side is
// unavailable.
func operator(ctx context.Context, p *Process, args []string, stdout io.Writer) error {
	return operate.Run(ctx, p.Subcommand, args, stdout, func(ctx context.Context) (operate.Sides, error) {
		consumers := pg.MapSlice(p.cfg.program.subscriptions(roleProjector), func(s Subscription) string { return s.Consumer })
		sides := operate.Sides{Replay: p.Replay, Consumers: consumers}
		commandErr, queryErr := p.OpenCommandSide(ctx), p.OpenQuerySide(ctx)
		if commandErr == nil {
			sides.Outbox = pg.NewOutbox(p.CommandPool)
		}
		if queryErr == nil {
			sides.Inbox = pg.NewInbox(p.QueryPool)
		}
		return sides, errors.Join(commandErr, queryErr)
	})
}

const helpHead = `server is the program of the service.

  server [serve]                       run until SIGTERM or SIGINT
  server migrate                       bring the database schema up to date
  server drain                         publish everything pending, then exit
  server status                        show what waits, what is stuck and why
         --json                        of all that list or change: print JSON, one object per line
  server stuck [WHICH]                 list blocked aggregates, whose event the broker refused, and messages in quarantine
         WHICH is some of:
         --id ID                       as stuck shows it: the first event of an aggregate, or the number of a message
         --type TYPE --aggregate ID    about these aggregates
         --cause CAUSE                 as stuck shows it, or a part of the error
         --limit N                     at most so many aggregates, and so many messages; default: 10000
  server retry WHICH --why TEXT        publish these events, or apply these messages, now
  server skip WHICH --why TEXT         never publish these events, and delete these messages
         --all                         of retry and skip, in place of WHICH: all; without --id a skip takes only what waits for a person
         --by NAME                     of all that change something: who does it; default: the user and the host, if there is a user
         --dry-run                     of these: change nothing, and count what matches
`

const helpTail = `  server version                       print the version
  server help                          print this, as COMMAND --help does

Exit codes: 0 done, or nothing matched; 1 failed, the output says what is changed; 2 wrong arguments or settings, and
3 what was named does not exist: nothing is changed; 4 some items could not be changed.

Settings are environment variables: see docs/settings.md, and the README of each option.
`

// help returns the help of all subcommands.
func (p Program) help() string {
	return helpHead + strings.Join(pg.MapSlice(p.Options, func(o Option) string { return o.Help }), "") + helpTail
}
