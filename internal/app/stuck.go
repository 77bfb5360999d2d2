package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// word is a command that operates a service: it works on the events that the broker refused,
// and then on the messages in quarantine.
type word struct {
	args               int // the largest number of arguments
	outbox, quarantine func(context.Context, *job) error
}

// words are the commands that every service has, whatever its options.
var words = map[string]word{
	"status": {0, statusOfOutbox, statusOfQuarantine},
	"stuck":  {1, listBlocked, listQuarantined},
	"retry":  {1, retryBlocked, retryQuarantined},
	"skip":   {2, skipBlocked, skipQuarantined},
}

// job is a word that runs. Its filter is an item: the type and the id of an aggregate, or only
// the number of a message. Without an item it matches everything.
type job struct {
	operation
	cfg      config
	database database // of the side where it works
	out      *Printer
	found    int // how many items it has shown
}

func (j *job) events() *store.Outbox { return store.NewOutbox(j.database.commands.own) }
func (j *job) inbox() *store.Inbox   { return store.NewInbox(j.database.queries.own) }

// operate runs a word. A side is operated also while the database of the other one is
// unavailable.
func operate(ctx context.Context, cfg config, command string, args []string, stdout io.Writer) error {
	o, err := parseWord(command, args)
	if err != nil {
		return err
	}
	j := &job{operation: o, cfg: cfg, out: NewPrinter(stdout, o.json)}
	isAggregate := o.Filter.Type != ""
	if isAggregate || o.Filter.ID == "" {
		err = j.on(ctx, sides{commands: true}, words[command].outbox)
	}
	if !isAggregate || command == "stuck" {
		reacts := command == "retry" && len(cfg.program.subscriptions(cfg.program.Registrations(nil), Backend{})) > 0
		err = errors.Join(err, j.on(ctx, sides{queries: true, commands: reacts}, words[command].quarantine))
	}
	if command == "stuck" && j.found == 0 && err == nil {
		if len(o.args) > 0 {
			return problem.Errorf(problem.NotFound, "%s is not stuck", o.args[0])
		}
		j.out.Line("nothing is stuck")
	}
	return errors.Join(j.out.End(), err)
}

func (j *job) on(ctx context.Context, used sides, do func(context.Context, *job) error) (err error) {
	if j.database, err = openDatabase(ctx, j.cfg, used, 0, nil); err != nil {
		return err
	}
	defer j.database.close()
	return do(ctx, j)
}

// parseWord reads flags and arguments, in any order.
func parseWord(command string, args []string) (o operation, err error) {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	changes := command == "retry" || command == "skip"
	if command != "status" {
		flags.BoolVar(&o.json, "json", false, "")
	}
	if changes {
		o.Actor.Via = "command"
		flags.StringVar(&o.Actor.Name, "by", admin.OperatorName(), "")
		flags.StringVar(&o.Reason, "why", "", "")
		flags.BoolVar(&o.DryRun, "dry-run", false, "")
	}
	if command == "retry" {
		flags.BoolVar(&o.All, "all", false, "")
	}
	if o.args, err = admin.ParseFlags(flags, args); err == nil {
		err = o.parseItem(words[command].args)
	}
	if err == nil && changes {
		if len(o.args) == 0 && !o.All {
			err = errors.New("ITEM is required, or --all for retry")
		} else {
			_, err = admin.Operation{Actor: o.Actor, Reason: o.Reason, DryRun: o.DryRun}.Entry(command, nil)
		}
	}
	if known, ok := errors.AsType[*problem.Error](err); ok {
		err = fmt.Errorf("%s %s", known.Field, known.Message)
	}
	if err != nil {
		err = usageError(fmt.Errorf("%s: %w: try `server help`", command, err))
	}
	return o, err
}

// parseItem makes the first argument the filter, and the second one the event.
func (o *operation) parseItem(most int) (err error) {
	if len(o.args) > most {
		return fmt.Errorf("%d arguments, want at most %d", len(o.args), most)
	}
	if len(o.args) == 0 {
		return nil
	}
	kind, id, isAggregate := strings.Cut(o.args[0], "/")
	number, _ := strconv.ParseUint(o.args[0], 10, 63) // 0 if it is no number
	switch {
	case o.All:
		return errors.New("--all must not be set with ITEM")
	case kind != "" && id != "":
		o.Filter = admin.Filter{Type: kind, ID: id}
	case number > 0:
		o.Filter = admin.Filter{ID: o.args[0]}
	default:
		return fmt.Errorf("ITEM %q must be TYPE/ID, or the number of a message", o.args[0])
	}
	if len(o.args) == 2 {
		if o.EventID, err = uuid.Parse(o.args[1]); err != nil || !isAggregate {
			return fmt.Errorf("EVENT_ID %q must be the UUID of an event, behind TYPE/ID", o.args[1])
		}
	}
	return nil
}

func listBlocked(ctx context.Context, j *job) error {
	for after, more := (envelope.Aggregate{}), true; more; {
		page, err := j.events().ListBlocked(ctx, j.Filter, after, listRows)
		if err != nil {
			return err
		}
		for _, b := range page {
			j.showBlocked(b)
			after = b.Aggregate
		}
		more = len(page) == listRows
	}
	return nil
}

// listQuarantined lists messages. If an aggregate was named, it lists those about it.
func listQuarantined(ctx context.Context, j *job) error {
	filter, aggregate := j.Filter, ""
	if filter.Type != "" {
		filter.ID, aggregate = "", filter.ID
	}
	for after, more := int64(0), true; more; {
		page, err := j.inbox().ListQuarantine(ctx, filter, after, listRows)
		if err != nil {
			return err
		}
		for _, m := range page {
			if aggregate == "" || m.Attributes[envelope.AttrAggregateID] == aggregate {
				j.showQuarantined(m)
			}
			after = m.ID
		}
		more = len(page) == listRows
	}
	return nil
}

func (j *job) showBlocked(b admin.Blocked) {
	item, state := b.Type+"/"+b.ID, "parked"
	if b.ParkedAt.IsZero() {
		state = "blocked until " + timeText(b.NextRetry)
	}
	j.show(struct {
		Item string `json:"item"`
		admin.Blocked
	}{item, b}, item, timeText(b.EventTime), state, strconv.Itoa(b.Attempts), b.EventID.String(), shortened(b.LastError))
}

func (j *job) showQuarantined(m admin.Quarantined) {
	item, state := strconv.FormatInt(m.ID, 10), "quarantined by "+m.Consumer
	if m.PayloadSHA256 != "" {
		state += ", payload not kept"
	}
	j.show(struct {
		Item string `json:"item"`
		admin.Quarantined
	}{item, m}, item, timeText(m.ReceivedAt), state, "-", m.Attributes[envelope.AttrEventID], shortened(m.Reason))
}

// show prints an item as a row of the list, or, if it was named, all about it.
func (j *job) show(item any, cells ...string) {
	if j.found++; j.found == 1 && len(j.args) == 0 {
		j.out.Line("ITEM\tSINCE\tSTATE\tATTEMPTS\tEVENT_ID\tERROR")
	}
	if len(j.args) == 0 || j.json {
		j.out.Row(item, cells...)
		return
	}
	text, err := json.MarshalIndent(item, "", "  ")
	j.out.err = cmp.Or(j.out.err, err)
	for line := range strings.SplitSeq(string(text), "\n") {
		j.out.Row(nil, line)
	}
}

// shortened returns as much of an error as a list has room for.
func shortened(text string) string {
	if runes := []rune(text); len(runes) > 120 {
		return string(runes[:120]) + "…"
	}
	return text
}

func retryBlocked(ctx context.Context, j *job) error {
	if !j.All {
		found, err := j.events().ListBlocked(ctx, j.Filter, envelope.Aggregate{}, 1)
		if err != nil {
			return err
		}
		if len(found) > 0 && found[0].ParkedAt.IsZero() && found[0].Attempts == 0 {
			return problem.Errorf(problem.NotFound, "%s does not wait: the next attempt is due already", j.args[0])
		}
	}
	result, err := admin.Requeue(ctx, j.events(), j.Request)
	return j.reportTo(j.out, "retried", "aggregates", result, err)
}

func retryQuarantined(ctx context.Context, j *job) error {
	subscribed := j.cfg.program.replayed(j.cfg.program.Registrations(j.database.queries.own), j.database.commandPool())
	result, err := admin.Replay(ctx, j.inbox(), replayer(subscribed), j.Request)
	return j.reportTo(j.out, "retried", "messages", result, err)
}

// skipBlocked shows the event, and then gives it up. It must be named, so that a repeated skip
// does not give up the next one.
func skipBlocked(ctx context.Context, j *job) error {
	found, err := j.events().ListBlocked(ctx, j.Filter, envelope.Aggregate{}, 1)
	if err != nil {
		return err
	}
	if len(found) == 0 || j.EventID != uuid.Nil && found[0].EventID != j.EventID {
		return problem.Errorf(problem.NotFound, "%s is not blocked by event %s", j.args[0], j.EventID)
	}
	j.out.Line("A skipped event is never published:")
	j.showBlocked(found[0])
	if err := j.out.End(); err != nil {
		return err
	}
	if j.EventID == uuid.Nil {
		return usageError(errors.New("skip: EVENT_ID must be there behind TYPE/ID, such as " + found[0].EventID.String()))
	}
	result, err := admin.Skip(ctx, j.events(), j.Request)
	return j.reportTo(j.out, "skipped", "events", result, err)
}

// skipQuarantined shows the message, and then deletes it.
func skipQuarantined(ctx context.Context, j *job) error {
	found, err := j.inbox().ListQuarantine(ctx, j.Filter, 0, 1)
	for _, m := range found {
		j.out.Line("A skipped message is deleted:")
		j.showQuarantined(m)
	}
	if err := cmp.Or(err, j.out.End()); err != nil {
		return err
	}
	result, err := admin.Delete(ctx, j.inbox(), j.Request)
	return j.reportTo(j.out, "skipped", "messages", result, err)
}

// backlogCount is the largest number of rows that status counts.
const backlogCount = 100_000

func statusOfOutbox(ctx context.Context, j *job) error {
	migrations, schemaErr := db.Applied(ctx, j.database.commands.own)
	backlog, backlogErr := j.events().Measure(ctx, backlogCount)
	groups, err := j.events().GroupBlocked(ctx, listRows)
	if err := errors.Join(schemaErr, backlogErr, err); err != nil {
		return err
	}
	j.out.Line("build\t%s", j.cfg.program.Version)
	j.out.Line("schema\t%d migrations", migrations)
	j.out.Line("pending events\t%s%s", upTo(backlog.Pending), waits("; the oldest that is not blocked", backlog.Oldest))
	j.out.Line("blocked aggregates\t%s, of them parked %s%s", upTo(backlog.Blocked), upTo(backlog.Parked), waits("; the oldest event", backlog.OldestBlocked))
	j.causes(groups)
	return nil
}

func statusOfQuarantine(ctx context.Context, j *job) error {
	groups, err := j.inbox().GroupQuarantine(ctx, listRows)
	if err != nil {
		return err
	}
	var messages int64
	for _, g := range groups {
		messages += g.Items
	}
	j.out.Line("messages in quarantine\t%d", messages)
	j.causes(groups)
	for _, s := range subscriptions(j.cfg.program.Registrations(j.database.queries.own)) {
		at, err := j.inbox().LastApplied(ctx, s.Consumer)
		if err != nil {
			return err
		}
		j.out.Line("consumer "+s.Consumer+"\tits newest event was applied at %s", timeText(at))
	}
	return nil
}

// upTo returns a number that was counted up to backlogCount.
func upTo(n int64) string {
	if n >= backlogCount {
		return fmt.Sprintf("at least %d", backlogCount)
	}
	return strconv.FormatInt(n, 10)
}

// waits says how long something has waited since a time; nothing for the zero time.
func waits(what string, since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s waits for %s", what, max(0, time.Since(since)).Round(time.Second))
}

// causes prints the most frequent causes of one side.
func (j *job) causes(groups []admin.Group) {
	const most = 5
	for _, g := range groups[:min(most, len(groups))] {
		j.out.Row(nil, "", fmt.Sprintf("%d: %s", g.Items, shortened(g.Sample)))
	}
	if more := len(groups) - most; more > 0 {
		j.out.Line("\tand %d more causes: see `server stuck`", more)
	}
}
