// Package console is an option of a service: it shows the service in a browser, and lets a person
// retry or skip what is stuck. It is a command, and so a process of its own, with its own database
// users. See README.md.
//
// Every text comes from a template that escapes it, and the content security policy allows no
// inline script and no inline style. A request that changes something must come from a page of the
// console, and the Host of every request must be known, so that a foreign page cannot reach the
// console under a name of its own (DNS rebinding). Only a page that is open causes measurements.
package console

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/transport"
)

// Option returns the option.
func Option() app.Option {
	return app.Option{Name: "console", Help: help, Subcommands: map[string]app.Subcommand{
		"console": run,
		"find":    reader([]string{"TEXT"}, printFound),
		"show":    reader([]string{"TYPE", "ID"}, printAggregate),
		"audit":   reader([]string{"TEXT"}, printAudit),
		"pending": reader([]string{"N"}, printPending, "50"),
	}}
}

const help = `  server console [FLAGS]               serve the console for a browser; it may do what its database users may do
         --addr ADDRESS                where it listens; default: 127.0.0.1:8081
         --traces URL                  where a trace is shown, with {trace_id} instead of its id
  server find TEXT                     list the aggregates that have a text in their title
  server show TYPE ID                  show an aggregate, and where its events are
  server pending [N]                   list the events that wait longest for the broker; default: 50
  server audit TEXT                    list the last entries of the audit that have a text in them; '' lists all
`

const (
	// maxConns is how many connections the console opens to each database. The role for people in
	// docs/database.md may have one more, for psql.
	maxConns = 2
	// idleTime is how long the console keeps them while no page is loaded.
	idleTime = 5 * time.Second
)

// traceID stands for the id of a trace in the flag --traces.
const traceID = "{trace_id}"

// readFlags returns the address to listen on, and the URL of traces.
func readFlags(args []string) (addr, traces string, err error) {
	flags := flag.NewFlagSet("console", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says enough
	flags.StringVar(&addr, "addr", "127.0.0.1:8081", "")
	flags.StringVar(&traces, "traces", "", "")
	if err := flags.Parse(args); err != nil {
		return "", "", fmt.Errorf("console: %w: try `server console --help`", err)
	}
	if flags.NArg() > 0 {
		return "", "", fmt.Errorf("console: unknown argument %q: try `server console --help`", flags.Arg(0))
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return "", "", errors.New("--addr must be a host and a port, such as 127.0.0.1:8081")
	}
	if at, err := url.Parse(traces); err != nil || traces != "" && (at.Scheme != "http" && at.Scheme != "https" || !strings.Contains(traces, traceID)) {
		return "", "", fmt.Errorf("--traces must be a URL with %s in it, such as https://traces.example.com/%s", traceID, traceID)
	}
	return addr, traces, nil
}

// sidesOf returns the sides of a process that has opened both.
func sidesOf(process *app.Process) sides {
	s := sides{commands: process.CommandPool, queries: process.QueryPool, retention: process.Retention}
	s.Outbox, s.Inbox, s.Replay = pg.NewOutbox(s.commands), pg.NewInbox(s.queries), process.Replay
	for _, subscribed := range process.Replayed() {
		s.Consumers = append(s.Consumers, subscribed.Consumer)
	}
	s.projections, s.tables = make(map[string][]string), make(map[string]string)
	for _, registered := range process.Registered {
		if s.types = append(s.types, registered.AggregateType); registered.Table != "" {
			s.tables[registered.Table] = registered.AggregateType
		}
		for _, subscribed := range registered.Subscriptions {
			for of := range subscribed.Handlers(process.Backend()) {
				s.projections[of] = append(s.projections[of], subscribed.Consumer)
			}
		}
	}
	return s
}

// run serves the console until ctx ends.
func run(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	addr, traces, err := readFlags(args)
	if err != nil {
		return app.UsageError(err)
	}
	user := operate.OperatorName()
	if user == "" {
		return app.UsageError(errors.New("console: the audit could not say who acts: set USER and HOME"))
	}
	process.LimitConns(maxConns)
	if err := process.OpenCommandSide(ctx); err != nil {
		return err
	}
	if err := process.OpenQuerySide(ctx); err != nil {
		return err
	}
	s := &server{
		service: names.Service, log: process.Log, user: user, traceURL: traces, sides: sidesOf(process),
	}
	if err := s.parse(); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	host, number, _ := net.SplitHostPort(listener.Addr().String())
	if ip := net.ParseIP(host); ip != nil && !ip.IsLoopback() {
		process.Log.WarnContext(ctx, "console: everybody who reaches this address can do what its database users may do", "addr", listener.Addr().String())
	}
	idle, pages := time.AfterFunc(idleTime, func() { s.commands.Reset(); s.queries.Reset() }), s.routes()
	defer idle.Stop()
	fmt.Fprintf(stdout, "console: http://localhost:%s/\n", number)
	return s.serve(ctx, listener, transport.RefusePages(process.Hosts, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer idle.Reset(idleTime)
		pages.ServeHTTP(w, r)
	})))
}
