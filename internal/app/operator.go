package app

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
)

// listRows is how many rows are read at a time.
const listRows = 1000

// operation is what the flags and arguments of an operator's command say.
type operation struct {
	admin.Request
	args []string // that are no flags
	json bool
}

// parseOperation reads flags and arguments, in any order. more adds flags of the command.
func parseOperation(command string, args []string, more ...func(*flag.FlagSet)) (operation, error) {
	var filter string
	var all bool
	o, err := parseAction(command, args, append(more, func(flags *flag.FlagSet) {
		flags.StringVar(&filter, "filter", "", "")
		flags.BoolVar(&all, "all", false, "")
	})...)
	if err != nil {
		return o, err
	}
	o.All = all
	if err := o.parseFilter(filter, keysOf(command)); err != nil {
		return o, usageError(fmt.Errorf("%s --filter: %w", command, err))
	}
	return o, nil
}

// parseAction does so for a command that has no items to select.
func parseAction(command string, args []string, more ...func(*flag.FlagSet)) (operation, error) {
	var o operation
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says enough
	flags.BoolVar(&o.DryRun, "dry-run", false, "")
	flags.StringVar(&o.Reason, "reason", "", "")
	flags.BoolVar(&o.json, "json", false, "")
	for _, add := range more {
		add(flags)
	}
	for rest := args; ; rest = rest[1:] {
		if err := flags.Parse(rest); err != nil {
			return o, usageError(fmt.Errorf("%s: %w: try `server help`", command, err))
		}
		if rest = flags.Args(); len(rest) == 0 {
			break
		}
		o.args = append(o.args, rest[0])
	}
	o.Actor = admin.Actor{Name: operatorName(), Via: "command"}
	return o, nil
}

// entry returns what the audit has of an action that has no items to count. A dry run has no
// entry, and needs no reason.
func (o *operation) entry(action string, selected any) (admin.Entry, error) {
	if o.DryRun {
		return admin.Entry{}, nil
	}
	return admin.NewEntry(action, selected, o.Actor, o.Reason)
}

// keysOf returns the keys that the filter of a command may have.
func keysOf(command string) []string {
	switch group, _, _ := strings.Cut(command, " "); group {
	case "projection":
		return []string{"type", "id", "kind"}
	}
	return []string{"type", "id", "cause", "age"}
}

// parseFilter reads a filter such as type=video,age=1h.
func (o *operation) parseFilter(text string, keys []string) (err error) {
	if text == "" {
		return nil
	}
	for term := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(term, "=")
		if !slices.Contains(keys, key) {
			return fmt.Errorf("%q must be one of %s", key, strings.Join(keys, ", "))
		}
		if value == "" {
			return fmt.Errorf("%q must be key=value", term)
		}
		switch key {
		case "type":
			o.Filter.Type = value
		case "id":
			o.Filter.ID = value
		case "cause":
			o.Filter.Cause = value
		case "age":
			if o.Filter.Age, err = time.ParseDuration(value); err != nil || o.Filter.Age <= 0 {
				return fmt.Errorf("age %q must be a duration such as 30m or 24h", value)
			}
		case "kind":
			o.Kind = value
		}
	}
	return nil
}

// operatorName returns the user of the operating system and the host.
func operatorName() string {
	name := "unknown"
	if u, err := user.Current(); err == nil { // without a user database there is no name
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

func outboxCommand(ctx context.Context, cfg config, args []string, stdout, stderr io.Writer) error {
	command, o, err := parseCommand("outbox", args)
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	events := store.NewOutbox(database.commands.own)
	switch {
	case command == "list" && len(o.args) == 0:
		return listBlocked(ctx, events, o, stdout)
	case command == "causes" && len(o.args) == 0:
		groups, err := events.GroupBlocked(ctx, listRows)
		return printGroups(groups, o, stdout, err)
	case command == "requeue" && o.takeAggregate(0):
		result, err := admin.Requeue(ctx, events, o.Request)
		return o.report(stdout, "requeued", "aggregates", result, err)
	case command == "skip" && o.takeAggregate(1):
		result, err := admin.Skip(ctx, events, o.Request)
		return o.report(stdout, "skipped", "events", result, err)
	}
	return errUsage
}

// parseCommand splits the name of a command, such as list, from its flags and arguments.
func parseCommand(group string, args []string) (command string, o operation, err error) {
	if len(args) == 0 {
		return "", o, errUsage
	}
	o, err = parseOperation(group+" "+args[0], args[1:])
	return args[0], o, err
}

// takeAggregate makes the arguments TYPE ID the filter, and a third one the event, which
// must be there if events is 1. It reports whether the arguments are right. Without
// arguments the filter is that of the flags.
func (o *operation) takeAggregate(events int) bool {
	if len(o.args) == 0 {
		return true
	}
	if len(o.args) != 2+events || o.Filter != (admin.Filter{}) {
		return false
	}
	o.Filter = admin.Filter{Type: o.args[0], ID: o.args[1]}
	var err error
	if events == 1 {
		o.EventID, err = uuid.Parse(o.args[2])
	}
	return err == nil
}

func listBlocked(ctx context.Context, events *store.Outbox, o operation, stdout io.Writer) error {
	p := NewPrinter(stdout, o.json, "TYPE", "ID", "VERSION", "EVENT_ID", "ATTEMPTS", "NEXT", "CAUSE", "LAST_ERROR")
	var after envelope.Aggregate
	for {
		blocked, err := events.ListBlocked(ctx, o.Filter, after, listRows)
		if err != nil {
			return err
		}
		for _, b := range blocked {
			next := "parked since " + b.ParkedAt.Format(time.RFC3339)
			if b.ParkedAt.IsZero() {
				next = b.NextRetry.Format(time.RFC3339)
			}
			p.Row(b, b.Type, b.ID, strconv.FormatInt(b.Version, 10), b.EventID.String(), strconv.Itoa(b.Attempts), next, b.Cause, b.LastError)
			after = b.Aggregate
		}
		if len(blocked) < listRows {
			return p.End()
		}
	}
}

func printGroups(groups []admin.Group, o operation, stdout io.Writer, err error) error {
	if err != nil {
		return err
	}
	p := NewPrinter(stdout, o.json, "CAUSE", "ITEMS", "WAITING", "FIRST", "LAST", "SAMPLE")
	for _, g := range groups {
		p.Row(g, g.Cause, strconv.FormatInt(g.Items, 10), strconv.FormatInt(g.Waiting, 10), timeText(g.First), timeText(g.Last), g.Sample)
	}
	return p.End()
}

func quarantineCommand(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	command, o, err := parseCommand("quarantine", args)
	if err != nil {
		return err
	}
	reacts := command == "replay" && len(withReactions(cfg.program.Registrations(nil))) > 0
	database, err := openDatabase(ctx, cfg, sides{queries: true, commands: reacts}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	inbox := store.NewInbox(database.queries.own)
	switch {
	case command == "list" && len(o.args) == 0:
		return listQuarantine(ctx, inbox, o, stdout)
	case command == "causes" && len(o.args) == 0:
		groups, err := inbox.GroupQuarantine(ctx, listRows)
		return printGroups(groups, o, stdout, err)
	case command == "replay" && o.takeMessage():
		result, err := admin.Replay(ctx, inbox, replayer(replayed(cfg.program.Registrations(database.queries.own), database.commandPool())), o.Request)
		return o.report(stdout, "replayed", "messages", result, err)
	case command == "delete" && o.takeMessage():
		result, err := admin.Delete(ctx, inbox, o.Request)
		return o.report(stdout, "deleted", "messages", result, err)
	}
	return errUsage
}

// takeMessage makes the argument ID the filter. It reports whether the arguments are right.
func (o *operation) takeMessage() bool {
	if len(o.args) == 0 {
		return true
	}
	if len(o.args) != 1 || o.Filter != (admin.Filter{}) {
		return false
	}
	o.Filter = admin.Filter{ID: o.args[0]}
	return true
}

// replayer returns what applies a message of a subscription.
func replayer(subscribed []Subscription) admin.Apply {
	return func(ctx context.Context, m admin.Quarantined) error {
		i := slices.IndexFunc(subscribed, func(s Subscription) bool { return s.Consumer == m.Consumer })
		if i < 0 {
			return fmt.Errorf("this build has no subscription of the consumer %q", m.Consumer)
		}
		return subscribed[i].Handlers.Replay(ctx, m.Consumer, m.Attributes, m.Payload)
	}
}

func listQuarantine(ctx context.Context, inbox *store.Inbox, o operation, stdout io.Writer) error {
	p := NewPrinter(stdout, o.json, "ID", "CONSUMER", "MESSAGE_ID", "ORDERING_KEY", "RECEIVED", "PAYLOAD", "CAUSE", "REASON")
	for after := int64(0); ; {
		messages, err := inbox.ListQuarantine(ctx, o.Filter, after, listRows)
		if err != nil {
			return err
		}
		for _, m := range messages {
			payload := "kept"
			if m.PayloadSHA256 != "" {
				payload = fmt.Sprintf("not kept, %d bytes, SHA-256 %s", m.PayloadSize, m.PayloadSHA256)
			}
			p.Row(m, strconv.FormatInt(m.ID, 10), m.Consumer, m.MessageID, m.OrderingKey, timeText(m.ReceivedAt), payload, m.Cause, m.Reason)
			after = m.ID
		}
		if len(messages) < listRows {
			return p.End()
		}
	}
}

func auditCommand(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	command, o, err := parseCommand("audit", args)
	if err != nil || command != "list" || len(o.args) > 0 || o.Filter != (admin.Filter{}) {
		return cmp.Or(err, errUsage)
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true, queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	entries, err := admin.ListAudit(ctx, listRows, store.NewOutbox(database.commands.own), store.NewInbox(database.queries.own))
	if err != nil {
		return err
	}
	p := NewPrinter(stdout, o.json, "TIME", "ACTION", "ITEMS", "ACTOR", "VIA", "DATABASE_USER", "FILTER", "ACTION_ID", "REASON")
	for _, e := range entries {
		p.Row(e, timeText(e.CreateTime), e.Action, strconv.FormatInt(e.Items, 10), e.Name, e.Via, e.DatabaseUser, string(e.Filter), e.ActionID.String(), e.Reason)
	}
	return p.End()
}

// report prints what an action did, also if it failed in the middle.
func (o *operation) report(stdout io.Writer, verb, items string, r admin.Result, failure error) error {
	return o.reportTo(NewPrinter(stdout, o.json), verb, items, r, r, failure)
}

// reportTo prints a result, which row is in JSON.
func (o *operation) reportTo(p *Printer, verb, items string, r admin.Result, row any, failure error) error {
	if failure != nil && r.Done == 0 {
		return failure
	}
	for _, f := range r.Failed {
		p.Line("%s is unchanged: %s", f.ID, strings.Map(onOneLine, f.Cause))
	}
	if o.DryRun {
		p.Line("%d %s match; nothing was changed", r.Matched, items)
	} else {
		p.Line("%s %d of %d %s; action %s", verb, r.Done, r.Matched, items, r.ActionID)
	}
	p.Row(row)
	if r.Failures > 0 {
		failure = errors.Join(failure, ErrPartly)
	}
	return errors.Join(p.End(), failure)
}
