package app

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/console"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/store"
)

// consoleConns is how many connections the console opens to each database. The role of a
// person who only reads may have as many.
const consoleConns = 3

// consoleFlags are the flags of the command console.
type consoleFlags struct {
	addr, metrics, traces string
}

func parseConsoleFlags(args []string) (f consoleFlags, err error) {
	flags := flag.NewFlagSet("console", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&f.addr, "addr", "127.0.0.1:8081", "")
	flags.StringVar(&f.metrics, "metrics", "", "")
	flags.StringVar(&f.traces, "traces", "", "")
	if err := flags.Parse(args); err != nil {
		return f, usageError(fmt.Errorf("console: %w: try `server help`", err))
	}
	if flags.NArg() > 0 {
		return f, errUsage
	}
	if _, _, err := net.SplitHostPort(f.addr); err != nil {
		return f, usageError(errors.New("--addr must be a host and a port, such as 127.0.0.1:8081"))
	}
	if at, err := url.Parse(f.metrics); err != nil || f.metrics != "" && (at.Scheme == "" || at.Host == "") {
		return f, usageError(errors.New("--metrics must be a URL, such as http://127.0.0.1:9090/metrics"))
	}
	if at, err := url.Parse(f.traces); err != nil || f.traces != "" && (at.Scheme != "http" && at.Scheme != "https" || !strings.Contains(f.traces, console.TraceID)) {
		return f, usageError(fmt.Errorf("--traces must be a URL with %s in it, such as https://traces.example.com/%s", console.TraceID, console.TraceID))
	}
	return f, nil
}

// helpConsole is the help for the command.
const helpConsole = `  server console [FLAGS]               serve the console for a browser; it may do what its database users may do
         --addr ADDRESS                where it listens; default: 127.0.0.1:8081
         --metrics URL                 of the private port of a process, for what only the process knows
         --traces URL                  where a trace is shown, with {trace_id} instead of its id
`

// serveConsole serves the console until ctx ends. What it shows and may do depends on the
// users of the two database URLs.
func serveConsole(ctx context.Context, cfg config, args []string, stdout io.Writer, log *slog.Logger) error {
	flags, err := parseConsoleFlags(args)
	if err != nil {
		return err
	}
	cfg.DatabaseMaxConns = min(cfg.DatabaseMaxConns, consoleConns)
	database, err := openDatabase(ctx, cfg, sides{commands: true, queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	server, err := console.New(consoleConfig(cfg, flags, database, log))
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", flags.addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	host, number, _ := net.SplitHostPort(listener.Addr().String())
	if ip := net.ParseIP(host); ip != nil && !ip.IsLoopback() {
		log.WarnContext(ctx, "console: everybody who reaches this address can do what its database users may do", "addr", listener.Addr().String())
	}
	fmt.Fprintf(stdout, "console: http://localhost:%s/\n", number)
	return server.Run(ctx, listener)
}

func consoleConfig(cfg config, flags consoleFlags, database database, log *slog.Logger) console.Config {
	commands, queries := database.commands.own, database.queries.own
	events, inbox := store.NewOutbox(commands), store.NewInbox(queries)
	registered := cfg.program.Registrations(queries)
	subscribed := replayed(registered, commands)
	made := console.Config{
		Service: names.Service(), Version: cfg.program.Version, Commands: events, Queries: inbox, Outbox: events, Quarantine: inbox,
		Apply: replayer(subscribed), Decode: decodeQuarantined(subscribed),
		Settings: settingsInForce(cfg), Facts: func(ctx context.Context) ([]console.Setting, error) {
			return facts(ctx, cfg.program.Version, commands, events)
		},
		User: operatorName(), Metrics: flags.metrics, TraceURL: flags.traces, Log: log,
		Guard: func(next http.Handler) http.Handler { return port.RefusePages(cfg.hosts(), next) },
	}
	for _, s := range subscribed {
		made.Consumers = append(made.Consumers, s.Consumer)
	}
	for _, r := range registered {
		if r.Console != nil {
			made.Types = append(made.Types, r.Console(commands, queries))
		}
	}
	return made
}

// decodeQuarantined decodes a message with the handler of its subscription.
func decodeQuarantined(subscribed []Subscription) func(console.Message) (string, error) {
	return func(m console.Message) (string, error) {
		for _, s := range subscribed {
			if s.Consumer != m.Consumer {
				continue
			}
			decoded, err := s.Handlers.Decode(m.Attributes, m.Payload)
			if err != nil {
				return "", err
			}
			text, err := json.MarshalIndent(decoded, "", "  ")
			return string(text), err
		}
		return "", fmt.Errorf("this build has no consumer %q", m.Consumer)
	}
}

// settingsInForce returns the settings of this process, without secrets.
func settingsInForce(cfg config) []console.Setting {
	all := valuesOf(&cfg)
	for _, part := range cfg.program.Parts {
		if part.Settings != nil {
			all = append(all, valuesOf(part.Settings)...)
		}
	}
	return all
}

// valuesOf returns the settings of the struct that of points to, without secrets.
func valuesOf(of any) []console.Setting {
	values := reflect.ValueOf(of).Elem()
	var all []console.Setting
	for field := range values.Type().Fields() {
		if !field.IsExported() {
			continue
		}
		value := fmt.Sprint(values.FieldByIndex(field.Index).Interface())
		if list, ok := reflect.TypeAssert[[]string](values.FieldByIndex(field.Index)); ok {
			value = strings.Join(list, ",")
		}
		if strings.HasSuffix(field.Name, "URL") {
			value = withoutSecrets(value)
		}
		all = append(all, console.Setting{Name: field.Tag.Get("env"), Value: value, Help: field.Tag.Get("help")})
	}
	return all
}

// withoutSecrets returns a database URL without its password, which may also be a parameter.
// It shows nothing of a text that is no URL.
func withoutSecrets(text string) string {
	if text == "" {
		return ""
	}
	at, err := url.Parse(text)
	if err != nil || at.Scheme == "" {
		return "set"
	}
	shown := url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path}
	if at.User != nil {
		shown.User = url.User(at.User.Username())
	}
	return shown.String()
}

// facts returns what this deployment is.
func facts(ctx context.Context, version string, pool *pgxpool.Pool, events *store.Outbox) ([]console.Setting, error) {
	all := []console.Setting{{Name: "service", Value: names.Service()}, {Name: "build", Value: version, Help: runtime.Version()}}
	server, err := events.ServerVersion(ctx)
	if err != nil {
		return all, err
	}
	all = append(all, console.Setting{Name: "PostgreSQL", Value: server})
	applied, lacks, err := db.Applied(ctx, pool)
	if err != nil {
		return all, err
	}
	migrations := console.Setting{Name: "migrations", Value: fmt.Sprintf("%d applied, the last is %05d", applied, db.Version())}
	if lacks > 0 {
		migrations.Help = fmt.Sprintf("%d of this build are missing: run server migrate", lacks)
	}
	all = append(all, migrations)
	tables, err := events.Tables(ctx)
	if err != nil {
		return all, err
	}
	const mebibyte = 1 << 20
	all = append(all,
		console.Setting{Name: "partitions ahead", Value: fmt.Sprintf("%d days", tables.DaysAhead), Help: "maintenance keeps 7"},
		console.Setting{Name: "outbox", Value: fmt.Sprintf("%.1f MiB", float64(tables.Outbox)/mebibyte)},
		console.Setting{Name: "pending events", Value: fmt.Sprintf("%.1f MiB", float64(tables.Pending)/mebibyte), Help: "on disk, with what vacuum has not freed"})
	for _, t := range names.Topics() {
		all = append(all, console.Setting{Name: "topic", Value: t.Name, Help: strings.Join(t.AggregateTypes, ", ")})
	}
	return append(all, console.Setting{Name: "time", Value: time.Now().UTC().Format(time.RFC3339), Help: "of the console"}), nil
}
