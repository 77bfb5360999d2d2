package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/store"
)

// backfillCommand runs `outbox backfill`. The progress goes to stderr, so that stdout has only
// the result.
func backfillCommand(ctx context.Context, cfg config, args []string, stdout, stderr io.Writer) error {
	o, request, err := parseBackfill(args)
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	request.Progress = newProgress(stderr, "aggregates", 0).show
	result, err := backfiller(store.NewOutbox(database.commands.own), cfg.program.Registrations(nil))(ctx, request)
	return o.reportBackfill(stdout, result, err)
}

// backfiller returns what publishes the state of aggregates.
func backfiller(events *store.Outbox, registered []Registration) admin.Backfiller {
	var aggregates []store.Aggregates
	for _, r := range registered {
		aggregates = append(aggregates, r.Aggregates)
	}
	return func(ctx context.Context, r admin.BackfillRequest) (admin.BackfillResult, error) {
		snapshots, err := events.Snapshots(r.Filter.Type, aggregates)
		if err != nil {
			return admin.BackfillResult{}, err
		}
		return admin.Backfill(ctx, snapshots, r)
	}
}

// parseBackfill reads the flags and the aggregate type.
func parseBackfill(args []string) (operation, admin.BackfillRequest, error) {
	var after string
	var r admin.BackfillRequest
	o, err := parseAction("outbox backfill", args, func(flags *flag.FlagSet) {
		flags.StringVar(&after, "after", "", "")
		flags.IntVar(&r.Pending, "pending", 0, "")
	})
	if err != nil {
		return o, r, err
	}
	if after != "" {
		if r.After, err = uuid.Parse(after); err != nil {
			return o, r, usageError(fmt.Errorf("outbox backfill --after: %q must be an id that an interrupted command has printed", after))
		}
	}
	if len(o.args) != 1 {
		return o, r, errUsage
	}
	o.Filter.Type = o.args[0]
	r.Request = o.Request
	return o, r, nil
}

// reportBackfill prints what was done, and where an interrupted command continues.
func (o *operation) reportBackfill(stdout io.Writer, r admin.BackfillResult, failure error) error {
	if failure != nil && r.Done == 0 {
		return failure
	}
	p := NewPrinter(stdout, o.json)
	if o.DryRun {
		p.Line("%d aggregates match; nothing was changed", r.Matched)
	} else {
		p.Line("published %d of %d aggregates; action %s", r.Done, r.Matched, r.ActionID)
	}
	if failure != nil {
		p.Line("to continue, run it again with --after %s", r.Last)
	}
	p.Row(r)
	return errors.Join(p.End(), failure)
}
