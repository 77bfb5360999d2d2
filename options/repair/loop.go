package repair

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/telemetry/heartbeat"
	"example.com/videocatalog/options/repair/internal/sqlcgen"
)

// loop compares projections in the background, one slice of the ids at a time. The database stores
// the progress. So any number of processes may run the loop, only one compares a projection at a
// time, and a pass continues after a restart. The loop repairs nothing: an operator does.
type loop struct {
	config

	sources  []source
	progress progress
	log      *slog.Logger
	compared metric.Int64Counter
	beats    *heartbeat.Loop
}

func newLoop(cfg config, sources []source, p progress, log *slog.Logger, meter metric.Meter) (*loop, error) {
	counted, err := meter.Int64Counter("projection.compared", metric.WithUnit("{row}"),
		metric.WithDescription("Rows of the owner that this process has compared with their projection in the background."))
	return &loop{
		config: cfg, sources: sources, progress: p, log: log, compared: counted,
		beats: heartbeat.New("comparison of projections", 2*cfg.interval),
	}, err
}

// run compares slices until ctx ends. The failure of a slice is logged. After a failure or a crash,
// the slice is compared again after config.interval.
func (l *loop) run(ctx context.Context) error {
	defer l.beats.Rest()
	for {
		l.beats.Beat()
		// The pause comes first, so that it slows no start. It is random, so that the
		// processes of a service do not all query at the same time.
		if gax.Sleep(ctx, l.interval/2+rand.N(l.interval/2)) != nil {
			return nil
		}
		for _, s := range l.sources {
			if err := l.compareSlice(ctx, s); err != nil && ctx.Err() == nil {
				l.log.ErrorContext(ctx, "projection: comparison failed", "aggregate_type", s.name, "err", err)
			}
		}
	}
}

// loggedDifferences is how many differences of a slice are logged one by one.
const loggedDifferences = 10

// compareSlice compares a slice, if one is due.
func (l *loop) compareSlice(ctx context.Context, s source) error {
	l.beats.Beat()
	next, ok, err := l.progress.claim(ctx, s.name, l.interval)
	if err != nil || !ok {
		return err
	}
	result, err := comparison{source: s, rate: l.rate, wait: l.wait, beat: l.beats.Beat}.compare(ctx, next.after, l.slice)
	if err != nil {
		return err
	}
	l.compared.Add(ctx, result.rows, metric.WithAttributes(attribute.String("aggregate_type", s.name)))
	for _, d := range result.differences[:min(len(result.differences), loggedDifferences)] {
		l.log.WarnContext(ctx, "projection: entry differs from its owner", "aggregate_type", d.Type, "id", d.ID, "kind", d.Kind,
			"owner_version", d.OwnerVersion, "version", d.Version, "fields", d.Fields)
	}
	saved, err := l.progress.save(ctx, next, result, l.pass)
	if err == nil && saved && len(result.differences) > 0 {
		l.log.WarnContext(ctx, "projection: entries differ from their owner: run `server projection compare`",
			"aggregate_type", s.name, "differences", len(result.differences))
	}
	return err
}

// progress keeps how far the comparison of each aggregate type has come, for all processes.
type progress interface {
	// claim leases the next slice to this process. ok is false if no slice is due, or another
	// process has it.
	claim(ctx context.Context, aggregateType string, lease time.Duration) (next slice, ok bool, err error)
	// save saves the result of a slice. If the slice ends the pass, the next pass waits
	// until [between] has passed since this pass began. saved is false if the slice was claimed
	// again since, or the progress was reset.
	save(ctx context.Context, s slice, result compared, between time.Duration) (saved bool, err error)
}

// slice is a claimed slice: the next ids behind [slice.after].
type slice struct {
	name  string // the aggregate type
	claim int64
	after uuid.UUID
}

// comparisons is the progress in the database of the query side.
type comparisons struct{ queries *sqlcgen.Queries }

func comparisonsIn(pool *pgxpool.Pool) comparisons { return comparisons{sqlcgen.New(pool)} }

// claim implements progress, by the clock of the database.
func (c comparisons) claim(ctx context.Context, aggregateType string, lease time.Duration) (next slice, ok bool, err error) {
	rows, err := c.queries.ClaimComparison(ctx, aggregateType, lease)
	if err != nil || len(rows) == 0 {
		return next, false, pg.Wrap(err, "claim comparison of %s", aggregateType)
	}
	return slice{name: aggregateType, claim: rows[0].Claim, after: rows[0].AfterID}, true, nil
}

// save implements progress.
func (c comparisons) save(ctx context.Context, s slice, result compared, between time.Duration) (saved bool, err error) {
	n, err := c.queries.SaveComparison(ctx, sqlcgen.SaveComparisonParams{
		AggregateType: s.name, Claim: s.claim, UpTo: result.upTo, Ended: result.upTo == uuid.Max,
		Compared: result.rows, Differences: int64(len(result.differences)), Between: between,
	})
	return n == 1, pg.Wrap(err, "save comparison of %s", s.name)
}

// record saves a comparison of all rows by command, as a pass that has ended. It returns false if the user may only read.
func (c comparisons) record(ctx context.Context, sum summary) (bool, error) {
	err := c.queries.RecordComparison(ctx, sqlcgen.RecordComparisonParams{
		AggregateType: sum.Type, Differences: sum.Differences, Between: background.pass, Compared: sum.Compared,
	})
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && (refused.Code == "42501" || refused.Code == "25006") { // no privilege, or read-only
		return false, nil
	}
	return err == nil, pg.Wrap(err, "record the comparison of %s", sum.Type)
}
