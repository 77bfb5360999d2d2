package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/store"
)

// repeatCommand runs `outbox republish` and `outbox backfill`. The progress goes to stderr,
// so that stdout has only the result.
func repeatCommand(ctx context.Context, cfg config, args []string, stdout, stderr io.Writer) error {
	o, request, err := parseRepeat(args)
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	republish, backfill := repeats(store.NewOutbox(database.commands.own), cfg.program.Registrations(nil))
	what, act := "events", republish
	if args[0] == "backfill" {
		what, act = "aggregates", backfill
	}
	request.Progress = newProgress(stderr, what, 0).show
	result, err := act(ctx, request)
	return o.reportRepeat(stdout, what, result, err)
}

// repeats returns what publishes events, and the state of aggregates, again.
func repeats(events *store.Outbox, registered []Registration) (republish, backfill admin.Repeat) {
	var aggregates []store.Aggregates
	for _, r := range registered {
		aggregates = append(aggregates, r.Aggregates)
	}
	republish = func(ctx context.Context, r admin.RepeatRequest) (admin.RepeatResult, error) {
		items, err := events.Retained(r.Filter, aggregates)
		if err != nil {
			return admin.RepeatResult{}, err
		}
		return admin.Republish(ctx, items, r)
	}
	backfill = func(ctx context.Context, r admin.RepeatRequest) (admin.RepeatResult, error) {
		items, err := events.Snapshots(r.Filter.Type, aggregates)
		if err != nil {
			return admin.RepeatResult{}, err
		}
		return admin.Backfill(ctx, items, r)
	}
	return republish, backfill
}

// parseRepeat reads the flags of both commands, and the aggregate type of a backfill.
func parseRepeat(args []string) (operation, admin.RepeatRequest, error) {
	command, backfill := "outbox "+args[0], args[0] == "backfill"
	var from, to, after string
	var r admin.RepeatRequest
	o, err := parseOperation(command, args[1:], func(flags *flag.FlagSet) {
		flags.StringVar(&after, "after", "", "")
		flags.IntVar(&r.Pending, "pending", 0, "")
		if !backfill {
			flags.StringVar(&from, "from", "", "")
			flags.StringVar(&to, "to", "", "")
		}
	})
	if err != nil {
		return o, r, err
	}
	var errs [3]error
	r.From, errs[0] = parseTime("from", from)
	r.To, errs[1] = parseTime("to", to)
	if after != "" {
		if r.After, err = uuid.Parse(after); err != nil {
			errs[2] = fmt.Errorf("--after: %q must be an id that an interrupted command has printed", after)
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		return o, r, usageError(fmt.Errorf("%s %w", command, err))
	}
	switch {
	case !backfill && len(o.args) > 0, backfill && len(o.args) != 1:
		return o, r, errUsage
	case backfill && (o.All || o.Filter != (admin.Filter{})):
		return o, r, usageError(fmt.Errorf("%s: --all and --filter must not be set: it publishes all aggregates of TYPE", command))
	case backfill:
		o.Filter.Type = o.args[0]
	}
	r.Request = o.Request
	return o, r, nil
}

func parseTime(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("--%s: %q must be a time such as 2026-01-31T12:00:00Z", name, text)
	}
	return t, nil
}

// reportRepeat prints what was done, and where an interrupted command continues.
func (o *operation) reportRepeat(stdout io.Writer, what string, r admin.RepeatResult, failure error) error {
	if failure != nil && r.Done == 0 {
		return failure
	}
	p := newPrinter(stdout, o.json)
	if o.DryRun {
		p.line("%d %s match; nothing was changed", r.Matched, what)
	} else {
		p.line("repeated %d of %d %s; action %s", r.Done, r.Matched, what, r.ActionID)
	}
	if failure != nil {
		p.line("to continue, run it again with --after %s", r.Last)
	}
	p.row(r)
	return errors.Join(p.end(), failure)
}
