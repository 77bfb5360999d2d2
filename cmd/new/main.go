// Command new makes a service of your own from this repository.
//
//	go run ./cmd/new ../orders --module github.com/acme/orders --entity order --fields 'customer:string! total_cents:int64'
//
// It copies the committed files, renames the module, the service, the PostgreSQL schema
// and the error domain in all of them, runs the generators, and makes a git repository.
// The first commit has the rendered files. It is on the branch template, and your work
// begins on main. template.json records the options.
//
// With --upgrade it brings a service that it made to the present version of this template:
// it commits the new rendering to the branch template, and merges that branch. cmd/upgrade
// in the service does that with a clone of the template.
//
//	go run ./cmd/new ../orders --upgrade
//
// The service is lean: it has the machinery and the entity, which cmd/entity makes. With --full
// it is the whole reference, with the example.
//
// A wrong option is reported before anything is written. If a later step fails, there
// is no new folder; if only git fails, the folder stays.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"example.com/servicekit/tool"
)

const usage = `go run ./cmd/new DIR makes a service of your own from this repository, in the new folder DIR.

  --module PATH    Go module path, such as github.com/acme/orders
  --service NAME   name in Cloud Run; accounts, secrets, jobs and worker pools begin with it; default: after the last part of the module path
  --schema NAME    PostgreSQL schema and roles; default: SERVICE_db
  --domain NAME    domain of the reasons of errors, which clients see; default: SERVICE.example.com
  --entity NAME    what the service stores, in the singular: order, purchase_order
  --plural NAME    its plural; default: the regular one of English
  --fields LIST    its fields, as go run ./cmd/entity --help says; default: title:string
  --refs LIST          its uuid fields by which lists can be filtered, such as customer_id; default: none
  --transitions LIST   its transitions; default: none
  --timers LIST        limits of its time in a state, such as placed:15m:cancel; default: none
  --audited            create_user and update_user of the entity
  --batch              BatchCreate and BatchGet of the entity
  --purpose TEXT   what the service is for, in a sentence, for its README
  --with LIST      parts that the service also has, separated by commas or spaces: pools, terraform, and the folders of options
  --full           the whole reference instead, with the example and every part
  --yes            take the defaults without asking
  --upgrade        bring the service in DIR, which this command made, to the version of this template, add the parts of --with,
                   and remove the parts of --without LIST

Without --module it asks, if it runs on a terminal.
`

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "new:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin *os.File, stdout io.Writer) error {
	a, mode, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if err != nil {
		return err
	}
	from, err := findTemplate(context.Background())
	if err != nil {
		return err
	}
	if a.offered, err = from.optionNames(); err != nil {
		return err
	}
	if a.Module == "" && !mode.upgrade && !mode.yes && isTerminal(stdin) {
		if err := ask(&a, stdin, stdout); err != nil {
			return err
		}
	}
	// Until here a signal ends the process at once. From here on there is something to remove.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if mode.upgrade {
		return upgrade(ctx, from, a.dir, list(a.with), list(mode.without), stdout)
	}
	a.setDefaults()
	if err := a.check(); err != nil {
		return err
	}
	return render(ctx, from, a, stdout)
}

// mode has the flags that are not recorded as options.
type mode struct {
	yes, upgrade bool
	without      string // parts that an upgrade takes away
}

// listOf returns the flag of a list with commas, which may come several times.
func listOf(all *string) func(string) error {
	return func(value string) error { *all = strings.Trim(*all+","+value, ","); return nil }
}

// parse reads the command line.
func parse(args []string) (a options, m mode, err error) {
	flags := flag.NewFlagSet("new", flag.ContinueOnError)
	flags.StringVar(&a.Module, "module", "", "")
	flags.StringVar(&a.Service, "service", "", "")
	flags.StringVar(&a.Schema, "schema", "", "")
	flags.StringVar(&a.Domain, "domain", "", "")
	flags.StringVar(&a.Entity, "entity", "", "")
	flags.StringVar(&a.Plural, "plural", "", "")
	flags.Func("with", "", listOf(&a.with))
	flags.StringVar(&a.Purpose, "purpose", "", "")
	flags.BoolVar(&a.Full, "full", false, "")
	flags.StringVar(&a.Fields, "fields", "", "")
	flags.StringVar(&a.Transitions, "transitions", "", "")
	flags.StringVar(&a.Timers, "timers", "", "")
	flags.StringVar(&a.Refs, "refs", "", "")
	flags.BoolVar(&a.Audited, "audited", false, "")
	flags.BoolVar(&a.Batch, "batch", false, "")
	flags.BoolVar(&m.yes, "yes", false, "")
	flags.BoolVar(&m.upgrade, "upgrade", false, "")
	flags.Func("without", "", listOf(&m.without))
	dirs, err := tool.Parse(flags, args)
	if err != nil {
		return a, m, err
	}
	if len(dirs) != 1 {
		return a, m, fmt.Errorf("want one folder, and not %q: a list with spaces needs quotes; try go run ./cmd/new --help", dirs)
	}
	a.dir = dirs[0]
	flags.Visit(func(f *flag.Flag) {
		switch {
		case m.upgrade && !slices.Contains([]string{"upgrade", "with", "without"}, f.Name):
			err = fmt.Errorf("--%s must not be given with --upgrade, which takes the recorded options", f.Name)
		case !m.upgrade && f.Name == "without":
			err = errors.New("--without is for --upgrade: a new service has only the parts of --with")
		}
	})
	return a, m, err
}

// list returns the parts in the value of --with or --without.
func list(text string) (parts []string) {
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return parts
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
