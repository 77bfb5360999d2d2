package repair

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/transport"
	"example.com/videocatalog/options/repair/internal/sqlcgen"
)

// actionAccept is the action, as the table audit names it.
const actionAccept = "databases.accept"

// identity identifies the history of the database of a side. After a failover, a restore or a move,
// Live differs from Known. The data may then lack acknowledged changes and contradict the other
// side, until a repair.
type identity struct{ Live, Known string }

// database is the database of a side, and the effect of a command on it.
type database struct {
	ActionID uuid.UUID `json:"action_id,omitzero"` // zero if nothing was changed
	Side     string    `json:"side"`               // commands or queries
	Live     string    `json:"live"`
	Known    string    `json:"known"` // before
	Changed  bool      `json:"changed"`

	look func(context.Context) (identity, error)
	know func(ctx context.Context, live string, e pg.Entry) (int64, error)
}

// databasesOf returns the databases of the sides that a process uses.
func databasesOf(process *app.Process) []*database {
	var all []*database
	if process.CommandPool != nil {
		all = append(all, commandDatabase(process.CommandPool))
	}
	if process.QueryPool != nil {
		all = append(all, queryDatabase(process.QueryPool))
	}
	return all
}

func commandDatabase(pool *pgxpool.Pool) *database {
	q := sqlcgen.New(pool)
	return &database{
		Side: transport.SideCommands,
		look: func(ctx context.Context) (identity, error) {
			row, err := q.GetCommandDatabase(ctx)
			return identity(row), pg.Wrap(err, "identify database")
		},
		know: func(ctx context.Context, live string, e pg.Entry) (int64, error) {
			n, err := q.KnowCommandDatabase(ctx, sqlcgen.KnowCommandDatabaseParams{
				Identity: live, ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
			})
			return n, pg.Wrap(err, "know database")
		},
	}
}

func queryDatabase(pool *pgxpool.Pool) *database {
	q := sqlcgen.New(pool)
	return &database{
		Side: transport.SideQueries,
		look: func(ctx context.Context) (identity, error) {
			row, err := q.GetQueryDatabase(ctx)
			return identity(row), pg.Wrap(err, "identify database of the query side")
		},
		know: func(ctx context.Context, live string, e pg.Entry) (int64, error) {
			n, err := q.KnowQueryDatabase(ctx, sqlcgen.KnowQueryDatabaseParams{
				Identity: live, ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
			})
			return n, pg.Wrap(err, "know database of the query side")
		},
	}
}

// find reads the live and the known database. On a standby it returns problem.Unavailable.
func (d *database) find(ctx context.Context) error {
	found, err := d.look(ctx)
	d.Live, d.Known = found.Live, found.Known
	return err
}

// accept records d.Live as known, and appends the entry to the audit, in one transaction. If it is
// known already, nothing changes.
func (d *database) accept(ctx context.Context, entry pg.Entry) error {
	n, err := d.know(ctx, d.Live, entry)
	if d.Changed = n > 0; d.Changed {
		d.ActionID = entry.ActionID
	} else if err == nil { // another operator has done it
		d.Known = d.Live
	}
	return err
}

func (d *database) print(out *operate.Printer) {
	switch {
	case d.Changed:
		out.Line("%s: %s is known now, before it was %s; action %s", d.Side, d.Live, d.Known, d.ActionID)
	case d.Live == d.Known:
		out.Line("%s: %s is known already; nothing was changed", d.Side, d.Live)
	default:
		out.Line("%s: %s is not known, but %s; nothing was changed", d.Side, d.Live, d.Known)
	}
	out.Row(d)
}

// runDatabases records the present databases of both sides as known. It repairs nothing: a person
// must have compared the data.
func runDatabases(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	o, err := operate.ParseOperation(args, nil)
	if err == nil && (len(o.Args) != 1 || o.Args[0] != "accept") {
		err = errors.New("want databases accept: try `server databases --help`")
	}
	if err != nil {
		return app.UsageError(err)
	}
	entry, err := o.Entry(actionAccept, struct{}{})
	if err != nil {
		return err
	}
	if err := process.OpenCommandSide(ctx); err != nil {
		return err
	}
	if err := process.OpenQuerySide(ctx); err != nil {
		return err
	}
	out := operate.NewPrinter(stdout, o.JSON)
	for _, d := range databasesOf(process) {
		err := d.find(ctx)
		if err == nil && !o.DryRun {
			err = d.accept(ctx, entry)
		}
		if err != nil {
			return errors.Join(out.End(), err)
		}
		d.print(out)
	}
	return out.End()
}

const (
	// watchInterval is the pause between two checks of the databases.
	watchInterval = 10 * time.Second
	// replacedReminder is how often the log repeats that a database was replaced.
	replacedReminder = time.Hour
)

// watched is a database that is watched: it is replaced if it is not the one in which the data was
// last known to be right.
type watched struct {
	*database

	state  atomic.Int64 // 1 if replaced, 0 if not, -1 if not known yet
	logged time.Time    // when the replacement was last logged
}

// watch checks databases, moves rows from their future, and reads the results of comparisons.
type watch struct {
	databases   []*watched
	moves       []func(context.Context) (more bool, err error)
	measure     func(context.Context) ([]sqlcgen.MeasureComparisonsRow, error) // nil: the process does not use the query side
	differences atomic.Pointer[[]sqlcgen.MeasureComparisonsRow]
	log         *slog.Logger
}

func newWatch(process *app.Process) *watch {
	w := &watch{log: process.Log}
	for _, d := range databasesOf(process) {
		known := &watched{database: d}
		known.state.Store(-1)
		w.databases = append(w.databases, known)
	}
	if process.QueryPool != nil {
		w.measure = sqlcgen.New(process.QueryPool).MeasureComparisons
		for _, p := range all(process.CommandPool, process.QueryPool) {
			w.moves = append(w.moves, p.moveFuture)
		}
	}
	return w
}

// observe creates the metrics of the watch.
func (w *watch) observe(meter metric.Meter) error {
	_, err := meter.Int64ObservableGauge("database.replaced", metric.WithUnit("{database}"),
		metric.WithDescription("1 while the database of a side (commands, queries) was replaced, for example by a failover or a restore, and the new one is not yet recorded as known; else 0."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for _, d := range w.databases {
				if state := d.state.Load(); state >= 0 {
					o.Observe(state, metric.WithAttributes(attribute.String("side", d.Side)))
				}
			}
			return nil
		}))
	if err != nil {
		return err
	}
	_, err = meter.Int64ObservableGauge("projection.differences", metric.WithUnit("{entry}"),
		metric.WithDescription("Entries of a projection that differ from their owner, as the last complete comparison found them, or the one that runs if it has found more."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			if found := w.differences.Load(); found != nil {
				for _, row := range *found {
					o.Observe(row.Differences, metric.WithAttributes(attribute.String("aggregate_type", row.AggregateType)))
				}
			}
			return nil
		}))
	return err
}

// run calls check until ctx ends. Any number of processes may run it at once.
func (w *watch) run(ctx context.Context) error {
	w.check(ctx)
	for gax.Sleep(ctx, watchInterval) == nil {
		w.check(ctx)
	}
	return nil
}

// check checks once. It does not log that a database is unavailable, because other code does. After
// an error, the next check does the rest.
func (w *watch) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchInterval)
	defer cancel()
	var errs []error
	for _, d := range w.databases {
		found, err := d.look(ctx)
		if errs = append(errs, err); err == nil {
			d.note(ctx, found, w.log)
		}
	}
	for _, move := range w.moves {
		more, err := move(ctx)
		for more && err == nil {
			more, err = move(ctx)
		}
		errs = append(errs, err)
	}
	if w.measure != nil {
		found, err := w.measure(ctx)
		if errs = append(errs, pg.Wrap(err, "measure comparisons")); err == nil {
			w.differences.Store(&found)
		}
	}
	for _, err := range errs {
		if known, ok := errors.AsType[*problem.Error](err); err != nil && ctx.Err() == nil && (!ok || known.Kind != problem.Unavailable) {
			w.log.ErrorContext(ctx, "database: cannot be identified or repaired", "err", err)
		}
	}
}

// note records which database was found, and logs a replacement.
func (d *watched) note(ctx context.Context, found identity, log *slog.Logger) {
	if found.Live == found.Known {
		d.state.Store(0)
		d.logged = time.Time{}
		return
	}
	d.state.Store(1)
	if time.Since(d.logged) >= replacedReminder {
		d.logged = time.Now()
		log.ErrorContext(ctx, "database: replaced by another history of it, and what was acknowledged may be lost: see options/repair/failover.md",
			"side", d.Side, "live", found.Live, "known", found.Known)
	}
}
