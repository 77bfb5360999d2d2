// Package operate has the commands by which an operator sees and frees what is stuck: status,
// stuck, retry and skip. Each works on the events that the broker refused, and then on the
// messages in quarantine. internal/admin says what an action does.
package operate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// Service is what the commands need of a service.
type Service struct {
	Version   string
	Consumers []string    // of the query side
	Replay    admin.Apply // applies a message of the quarantine
	// Commands and Queries connect to a side. It is operated also while the database of the
	// other one is unavailable.
	Commands, Queries func(context.Context) (*pgxpool.Pool, error)
}

// word is a command.
type word struct {
	args               int // the largest number of arguments
	changes            bool
	outbox, quarantine func(context.Context, *job) error
}

var words = map[string]word{
	"status": {0, false, statusOfOutbox, statusOfQuarantine},
	"stuck":  {1, false, listBlocked, listQuarantined},
	"retry":  {1, true, retryBlocked, retryQuarantined},
	"skip":   {2, true, skipBlocked, skipQuarantined},
}

// job is a command that runs. Its filter is an item: the type and the id of an aggregate, or only
// the number of a message. Without an item it matches everything.
type job struct {
	Service
	admin.Operation
	request admin.Request
	pool    *pgxpool.Pool // of the side where it works
	outbox  *store.Outbox
	inbox   *store.Inbox
	out     *admin.Printer
	found   int // how many items it has shown
}

// Run runs a command. A mistake in its arguments is problem.Invalid, and an item that is not stuck
// is problem.NotFound.
func Run(ctx context.Context, s Service, command string, args []string, stdout io.Writer) error {
	j, err := parse(command, args)
	if err != nil {
		return problem.Errorf(problem.Invalid, "%v", err)
	}
	j.Service = s
	j.out = admin.NewPrinter(stdout, j.JSON)
	isAggregate := j.request.Filter.Type != ""
	if isAggregate || j.request.Filter.ID == "" {
		if j.pool, err = s.Commands(ctx); err == nil {
			j.outbox = store.NewOutbox(j.pool)
			err = words[command].outbox(ctx, j)
		}
	}
	if !isAggregate || command == "stuck" {
		var failure error
		if j.pool, failure = s.Queries(ctx); failure == nil {
			j.inbox = store.NewInbox(j.pool)
			failure = words[command].quarantine(ctx, j)
		}
		err = errors.Join(err, failure)
	}
	if command == "stuck" && j.found == 0 && err == nil {
		if len(j.Args) > 0 {
			return problem.Errorf(problem.NotFound, "%s is not stuck", j.Args[0])
		}
		j.out.Line("nothing is stuck")
	}
	return errors.Join(j.out.End(), err)
}

// parse reads flags and arguments, in any order.
func parse(command string, args []string) (*job, error) {
	j, all := new(job), false
	var err error
	j.Operation, err = admin.ParseOperation(command, args, func(flags *flag.FlagSet) {
		if command == "retry" {
			flags.BoolVar(&all, "all", false, "")
		}
	})
	if err != nil {
		return nil, err
	}
	j.request = admin.Request{All: all, DryRun: j.DryRun, Reason: j.Reason, Actor: j.Actor}
	if err := j.check(command); err != nil {
		return nil, fmt.Errorf("%s: %w: try `server help`", command, err)
	}
	return j, nil
}

func (j *job) check(command string) error {
	word, all := words[command], j.request.All
	switch {
	case len(j.Args) > word.args:
		return fmt.Errorf("%d arguments, want at most %d", len(j.Args), word.args)
	case len(j.Args) > 0 && all:
		return errors.New("--all must not be there with ITEM")
	case len(j.Args) == 0 && word.changes && !all:
		return errors.New("ITEM is required, or --all for retry")
	case len(j.Args) > 0:
		if err := j.parseItem(command); err != nil {
			return err
		}
	}
	if !word.changes {
		return nil
	}
	_, err := j.Entry(command, nil)
	return err
}

// parseItem makes the first argument the filter, and the second one the event, which a skip must
// name, so that a repeated skip does not give up the next one.
func (j *job) parseItem(command string) (err error) {
	kind, id, isAggregate := strings.Cut(j.Args[0], "/")
	number, _ := strconv.ParseUint(j.Args[0], 10, 63) // 0 if it is no number
	switch {
	case kind != "" && id != "":
		j.request.Filter = admin.Filter{Type: kind, ID: id}
	case number > 0:
		j.request.Filter = admin.Filter{ID: j.Args[0]}
	default:
		return fmt.Errorf("ITEM %q must be TYPE/ID, or the number of a message", j.Args[0])
	}
	eventID := append(j.Args, "")[1]
	if command != "skip" || !isAggregate && eventID == "" {
		return nil
	}
	if j.request.EventID, err = uuid.Parse(eventID); err != nil || !isAggregate {
		return fmt.Errorf("EVENT_ID %q must be the UUID of an event, behind TYPE/ID", eventID)
	}
	return nil
}

func retryBlocked(ctx context.Context, j *job) error {
	result, err := admin.Requeue(ctx, j.outbox, j.request)
	return j.report("retried", "aggregates", result, err)
}

func retryQuarantined(ctx context.Context, j *job) error {
	result, err := admin.Replay(ctx, j.inbox, j.Replay, j.request)
	return j.report("retried", "messages", result, err)
}

// skipBlocked shows the event, and then gives it up.
func skipBlocked(ctx context.Context, j *job) error {
	if err := listBlocked(ctx, j); err != nil {
		return err
	}
	result, err := admin.Skip(ctx, j.outbox, j.request)
	return j.report("skipped", "events", result, err)
}

// skipQuarantined shows the message, and then deletes it.
func skipQuarantined(ctx context.Context, j *job) error {
	if err := listQuarantined(ctx, j); err != nil {
		return err
	}
	result, err := admin.Delete(ctx, j.inbox, j.request)
	return j.report("skipped", "messages", result, err)
}

// report prints a result.
func (j *job) report(verb, items string, r admin.Result, failure error) error {
	if failure != nil && r.Done == 0 {
		return failure
	}
	for _, f := range r.Failed {
		j.out.Line("%s is unchanged: %s", f.ID, admin.OneLine(f.Cause))
	}
	switch {
	case j.DryRun || r.Matched == 0:
		j.out.Line("%d %s match; nothing was changed", r.Matched, items)
	case r.Done == 0:
		j.out.Line("%s 0 of %d %s", verb, r.Matched, items)
	default:
		j.out.Line("%s %d of %d %s; action %s", verb, r.Done, r.Matched, items, r.ActionID)
	}
	j.out.Row(r)
	if r.Failures > 0 {
		failure = errors.Join(failure, admin.ErrPartly)
	}
	return failure
}
