package operate

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"unicode"

	"example.com/videocatalog/internal/pg"
)

// ErrPartly means that an action could not change some items.
var ErrPartly = errors.New("some items are unchanged")

// Operation has the flags and arguments of an operator's command.
type Operation struct {
	Args   []string // without the flags
	Reason string   // of the action, for the audit
	DryRun bool     // change nothing, and count what matches
	JSON   bool
	Actor  pg.Actor
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

// Entry returns the audit entry of an action: see [pg.NewEntry]. A dry run has none, and needs no reason.
func (o Operation) Entry(action string, selected any) (pg.Entry, error) {
	if o.DryRun {
		return pg.Entry{}, nil
	}
	return pg.NewEntry(action, selected, o.Actor, o.Reason)
}

var currentUser = user.Current // replaced by a test

// OperatorName returns the user of the operating system and the host. It is empty without a user, as
// on Cloud Run: the image has no user database. Then only --by says who acts.
func OperatorName() string {
	u, err := currentUser()
	if err != nil {
		return ""
	}
	host, _ := os.Hostname()
	return u.Username + "@" + cmp.Or(host, "unknown")
}

// Printer prints rows as a table, or as JSON, one object per line.
type Printer struct {
	table *tabwriter.Writer
	json  bool
	err   error // the first one
}

// NewPrinter returns a printer of a table, or of JSON.
func NewPrinter(w io.Writer, asJSON bool) *Printer {
	return &Printer{table: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0), json: asJSON}
}

// Row prints a value as JSON, if it is not nil, or its cells as a row of the table, if it has any. Control
// characters become spaces: a text from elsewhere could command the terminal.
func (p *Printer) Row(value any, cells ...string) {
	if p.json {
		if value != nil {
			p.err = cmp.Or(p.err, json.NewEncoder(p.table).Encode(value))
		}
		return
	}
	for i := range cells {
		cells[i] = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, cells[i])
	}
	if len(cells) > 0 {
		p.Line("%s", strings.Join(cells, "\t"))
	}
}

// Line prints a line of text, unless the output is JSON.
func (p *Printer) Line(format string, args ...any) {
	if !p.json {
		_, err := fmt.Fprintf(p.table, format+"\n", args...)
		p.err = cmp.Or(p.err, err)
	}
}

// End prints the rest of the table. It returns the first error of the output.
func (p *Printer) End() error { return cmp.Or(p.err, p.table.Flush()) }
