package operate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
)

// job is a command that runs.
type job struct {
	Operation
	Sides

	filter pg.Filter
	all    bool
	limit  uint
	out    *Printer
}

// Run runs the command status, stuck, retry or skip. open connects to both sides, and returns an
// error together with the side that it could reach. A mistake in the arguments is
// problem.Invalid, and a named item that is not stuck is problem.NotFound.
func Run(ctx context.Context, command string, args []string, stdout io.Writer, open func(context.Context) (Sides, error)) error {
	j := new(job)
	entry, err := j.parse(command, args)
	if err != nil {
		return problem.Errorf(problem.Invalid, "%s: %v: try `server %[1]s --help`", command, err)
	}
	j.out = NewPrinter(stdout, j.JSON)
	var missing error
	j.Sides, missing = open(ctx)
	var found int64
	switch command {
	case "status":
		err = j.status(ctx)
	case "stuck":
		found, err = j.stuck(ctx)
	default:
		found, err = j.act(ctx, command, entry)
	}
	if name := j.filter.ID + j.filter.Aggregate; name != "" && found == 0 && errors.Join(err, missing) == nil {
		return problem.Errorf(problem.NotFound, "%s is not stuck", name)
	}
	return errors.Join(err, j.out.End(), missing)
}

// parse reads flags. It returns the entry of an action that is no dry run.
func (j *job) parse(command string, args []string) (entry pg.Entry, err error) {
	j.Operation, err = ParseOperation(args, func(flags *flag.FlagSet) {
		if command != "status" {
			flags.StringVar(&j.filter.ID, "id", "", "")
			flags.StringVar(&j.filter.Type, "type", "", "")
			flags.StringVar(&j.filter.Aggregate, "aggregate", "", "")
			flags.StringVar(&j.filter.Cause, "cause", "", "")
			flags.BoolVar(&j.all, "all", false, "")
			flags.UintVar(&j.limit, "limit", MostItems, "")
		}
	})
	changes := command == Retry || command == Skip
	switch {
	case err != nil:
	case len(j.Args) > 0:
		err = fmt.Errorf("unknown argument %q", j.Args[0])
	case command != "status" && j.limit == 0:
		err = errors.New("--limit must be at least 1")
	case changes && j.all != (j.filter == pg.Filter{}):
		err = errors.New("--id, --type, --aggregate or --cause is required, or --all without them")
	case changes:
		entry, err = j.Entry(command, j.filter)
	}
	return entry, err
}

func (j *job) act(ctx context.Context, action string, e pg.Entry) (matched int64, err error) {
	r, err := j.Act(ctx, action, j.filter, int(j.limit), e)
	switch {
	case err != nil && r.Done == 0:
		return r.Matched, err
	case r.Done == 0:
		j.out.Line("%s", strings.TrimSpace(fmt.Sprintf("%d match; nothing was changed\n%s", r.Matched, r.Left)))
	default:
		j.out.Line("%s: %d of %d; action %s; `server stuck` has what fails again", action, r.Done, r.Matched, r.ActionID)
	}
	for _, text := range r.Failed {
		j.out.Line("unchanged: %q", text)
	}
	j.out.Row(r)
	if len(r.Failed) > 0 {
		err = errors.Join(err, ErrPartly)
	}
	return r.Matched, err
}

// stuck lists what is stuck.
func (j *job) stuck(ctx context.Context) (total int64, err error) {
	found, err := j.Find(ctx, j.filter, int(j.limit))
	if err != nil {
		return 0, err
	}
	j.out.Line("CAUSE\tID\tTYPE\tAGGREGATE\tSINCE\tSTATE\tATTEMPTS\tERROR")
	for _, b := range found.Blocked {
		state := "parked"
		if b.ParkedAt.IsZero() {
			state = "blocked until " + timeText(b.NextRetry)
		}
		j.out.Row(b, b.Cause, b.EventID.String(), b.Type, b.ID, timeText(b.EventTime), state, strconv.Itoa(b.Attempts), fmt.Sprintf("%.200s", b.LastError))
	}
	for _, m := range found.Messages {
		state := "quarantined by " + m.Consumer
		if m.PayloadSHA256 != "" {
			state += ", payload not kept"
		}
		of := m.Aggregate()
		j.out.Row(m, m.Cause, strconv.FormatInt(m.ID, 10), of.Type, of.ID, timeText(m.ReceivedAt), state, "-", fmt.Sprintf("%.200s", m.Reason))
	}
	shown := int64(len(found.Blocked) + len(found.Messages))
	j.out.Line("%d of %d", shown, found.Total)
	if shown < found.Total {
		j.out.Row(map[string]int64{"shown": shown, "total": found.Total})
	}
	return found.Total, nil
}

// status shows what waits, and why.
func (j *job) status(ctx context.Context) error {
	show := func(value any, name, format string, args ...any) {
		j.out.Row(value, name, fmt.Sprintf(format, args...))
	}
	if j.Outbox != nil {
		b, err := j.Outbox.Measure(ctx, 100_000)
		if err != nil {
			return err
		}
		show(b, "pending events", "%d; the oldest that is not blocked: %s", b.Pending, ago(b.Oldest))
		j.out.Line("%s", strings.TrimSuffix(fmt.Sprintf("blocked aggregates\t%d, of them parked %d\nother events\t%s", b.Blocked, b.Parked, b.Note), "\nother events\t"))
	}
	if j.Inbox != nil {
		_, messages, err := j.Inbox.ListQuarantine(ctx, pg.Filter{}, 1)
		if err != nil {
			return err
		}
		show(map[string]int64{"quarantined": messages}, "messages in quarantine", "%d", messages)
		for _, consumer := range j.Consumers {
			at, err := j.Inbox.LastApplied(ctx, consumer)
			if err != nil {
				return err
			}
			show(map[string]any{"consumer": consumer, "newest_apply_time": pg.Optional(at)}, "consumer "+consumer, "its newest event was applied at %s", ago(at))
		}
	}
	groups, err := j.Causes(ctx, 10)
	for _, g := range groups {
		show(g, "cause "+g.Cause, "%d: %.200s", g.Items, g.Sample)
	}
	return err
}

// ago is timeText with the time since then.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s, %s ago", timeText(t), time.Since(t).Round(time.Second))
}

// timeText writes a time in UTC, or a dash for none.
func timeText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
