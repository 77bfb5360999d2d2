package admin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"time"

	"example.com/videocatalog/internal/problem"
)

// Operation is what the flags and arguments of an operator's command say.
type Operation struct {
	Args   []string // that are no flags
	Reason string   // for those who read the audit
	DryRun bool     // change nothing, and count what matches
	JSON   bool
	Actor  Actor
}

// ParseOperation reads flags and arguments, in any order. more adds flags of the command; it may
// be nil.
func ParseOperation(command string, args []string, more func(*flag.FlagSet)) (o Operation, err error) {
	o.Actor.Via = "command"
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says enough
	flags.BoolVar(&o.DryRun, "dry-run", false, "")
	flags.StringVar(&o.Reason, "why", "", "")
	flags.StringVar(&o.Actor.Name, "by", OperatorName(), "")
	flags.BoolVar(&o.JSON, "json", false, "")
	if more != nil {
		more(flags)
	}
	for rest := args; ; rest = rest[1:] {
		if err := flags.Parse(rest); err != nil {
			return o, fmt.Errorf("%s: %w: try `server help`", command, err)
		}
		if rest = flags.Args(); len(rest) == 0 {
			return o, nil
		}
		o.Args = append(o.Args, rest[0])
	}
}

// Entry returns what the audit has of an action. A dry run has no entry, and needs no reason.
// Otherwise the error is problem.Invalid for a wrong reason or name, which it calls by the flag.
func (o Operation) Entry(action string, selected any) (Entry, error) {
	if o.DryRun {
		return Entry{}, nil
	}
	e, err := NewEntry(action, selected, o.Actor, o.Reason)
	if known, ok := errors.AsType[*problem.Error](err); ok {
		return e, problem.InvalidField(map[string]string{"reason": "--why", "actor": "--by"}[known.Field], "%s", known.Message)
	}
	return e, err
}

// OperatorName returns the user of the operating system and the host.
func OperatorName() string {
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

// progressInterval is how often the progress of a command is logged.
const progressInterval = 5 * time.Second

// LogProgress returns a function that logs how many items a long command has done, but not more
// often than every few seconds.
func LogProgress(log *slog.Logger, command string) func(ctx context.Context, done int64) {
	logged := time.Now()
	return func(ctx context.Context, done int64) {
		if time.Since(logged) < progressInterval {
			return
		}
		logged = time.Now()
		log.InfoContext(ctx, "operator: running", "command", command, "done", done)
	}
}
