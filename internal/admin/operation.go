package admin

import (
	"flag"
	"io"
	"os"
	"os/user"
)

// Operation has the flags and arguments of an operator's command.
type Operation struct {
	Args   []string // without the flags
	Reason string   // for those who read the audit
	DryRun bool     // change nothing, and count what matches
	JSON   bool
	Actor  Actor
}

// ParseOperation reads flags and arguments, in any order. more adds flags of the command; it may
// be nil.
func ParseOperation(args []string, more func(*flag.FlagSet)) (o Operation, err error) {
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
			return o, err
		}
		if rest = flags.Args(); len(rest) == 0 {
			return o, nil
		}
		o.Args = append(o.Args, rest[0])
	}
}

// Entry returns what the audit has of an action: see [NewEntry]. A dry run has no entry, and needs
// no reason.
func (o Operation) Entry(action string, selected any) (Entry, error) {
	if o.DryRun {
		return Entry{}, nil
	}
	return NewEntry(action, selected, o.Actor, o.Reason)
}

// OperatorName returns the user of the operating system and the host.
func OperatorName() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil { // without a user database there is no name
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
