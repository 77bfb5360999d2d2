package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"

	"example.com/videocatalog/internal/admin"
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
	if err := o.parseFilter(filter); err != nil {
		return o, usageError(fmt.Errorf("%s --filter: %w", command, err))
	}
	return o, nil
}

// parseAction does so for a command that has no items to select.
func parseAction(command string, args []string, more ...func(*flag.FlagSet)) (operation, error) {
	var o operation
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.BoolVar(&o.DryRun, "dry-run", false, "")
	flags.StringVar(&o.Reason, "reason", "", "")
	flags.BoolVar(&o.json, "json", false, "")
	for _, add := range more {
		add(flags)
	}
	if err := o.parseFlags(flags, args); err != nil {
		return o, usageError(fmt.Errorf("%s: %w: try `server help`", command, err))
	}
	o.Actor = admin.Actor{Name: operatorName(), Via: "command"}
	return o, nil
}

// parseFlags reads flags and arguments, in any order.
func (o *operation) parseFlags(flags *flag.FlagSet, args []string) error {
	flags.SetOutput(io.Discard) // the error says enough
	for rest := args; ; rest = rest[1:] {
		if err := flags.Parse(rest); err != nil {
			return err
		}
		if rest = flags.Args(); len(rest) == 0 {
			return nil
		}
		o.args = append(o.args, rest[0])
	}
}

// entry returns what the audit has of an action that has no items to count. A dry run has no
// entry, and needs no reason.
func (o *operation) entry(action string, selected any) (admin.Entry, error) {
	if o.DryRun {
		return admin.Entry{}, nil
	}
	return admin.NewEntry(action, selected, o.Actor, o.Reason)
}

// parseFilter reads a filter such as type=video,kind=missing.
func (o *operation) parseFilter(text string) error {
	if text == "" {
		return nil
	}
	keys := map[string]*string{"type": &o.Filter.Type, "id": &o.Filter.ID, "kind": &o.Kind}
	for term := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(term, "=")
		switch field := keys[key]; {
		case field == nil:
			return fmt.Errorf("%q must be one of type, id, kind", key)
		case value == "":
			return fmt.Errorf("%q must be key=value", term)
		default:
			*field = value
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

// parseCommand splits the name of a command, such as list, from its flags and arguments.
func parseCommand(group string, args []string) (command string, o operation, err error) {
	if len(args) == 0 {
		return "", o, errUsage
	}
	o, err = parseOperation(group+" "+args[0], args[1:])
	return args[0], o, err
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

// reportTo prints a result, which row is in JSON.
func (o *operation) reportTo(p *Printer, verb, items string, r admin.Result, row any, failure error) error {
	if failure != nil && r.Done == 0 {
		return failure
	}
	for _, f := range r.Failed {
		p.Line("%s is unchanged: %s", f.ID, strings.Map(onOneLine, f.Cause))
	}
	if o.DryRun || r.Matched == 0 {
		p.Line("%d %s match; nothing was changed", r.Matched, items)
	} else if r.Done == 0 {
		p.Line("%s 0 of %d %s", verb, r.Matched, items)
	} else {
		p.Line("%s %d of %d %s; action %s", verb, r.Done, r.Matched, items, r.ActionID)
	}
	p.Row(row)
	if r.Failures > 0 {
		failure = errors.Join(failure, ErrPartly)
	}
	return errors.Join(p.End(), failure)
}
