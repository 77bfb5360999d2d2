package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Progress keeps how far the comparison of each aggregate type has come, for all processes.
type Progress interface {
	// Claim claims the next slice for the time lease. ok is false if it is not due, or if
	// another process compares it.
	Claim(ctx context.Context, aggregateType string, lease time.Duration) (slice Slice, ok bool, err error)
	// Save saves the result of a slice. If it ends the pass, the next one begins no earlier
	// than the time between after this one began. saved is false if another process has
	// claimed the slice since.
	Save(ctx context.Context, slice Slice, result Result, between time.Duration) (saved bool, err error)
}

// Slice is a claimed slice: the next ids behind After.
type Slice struct {
	Type  string
	Claim int64
	After uuid.UUID
}

// Loop compares projections in the background. It is for one goroutine; any number of
// processes may run one.
type Loop struct {
	cfg      Config
	sources  []Source
	progress Progress
	log      *slog.Logger
	compared metric.Int64Counter
	beats    *heartbeat.Loop
}

// NewLoop returns a loop. meter may be nil. It returns an error for a Config that is not
// valid.
func NewLoop(cfg Config, sources []Source, progress Progress, log *slog.Logger, meter metric.Meter) (*Loop, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if meter == nil {
		meter = noop.Meter{}
	}
	cfg = cfg.WithDefaults()
	compared, err := meter.Int64Counter("projection.compared", metric.WithUnit("{row}"),
		metric.WithDescription("Rows of the owner that this process has compared with their projection in the background."))
	if err != nil {
		return nil, fmt.Errorf("make instrument: %w", err)
	}
	return &Loop{
		cfg: cfg, sources: sources, progress: progress, log: log, compared: compared,
		beats: heartbeat.New("comparison of projections", 2*cfg.Interval),
	}, nil
}

// Heartbeat returns what detects that the loop is stuck.
func (l *Loop) Heartbeat() *heartbeat.Loop { return l.beats }

// Run compares slices until ctx ends, and then returns nil. A slice that fails is logged,
// and compared again after Config.Interval. A crash leaves a slice that is compared again.
func (l *Loop) Run(ctx context.Context) error {
	defer l.beats.Rest()
	for {
		l.beats.Beat()
		select {
		case <-ctx.Done():
			return nil
		// First, so that no start is slower. Random, so that the processes of a service do
		// not all ask at the same time.
		case <-time.After(l.cfg.Interval/2 + rand.N(l.cfg.Interval/2)):
		}
		for _, source := range l.sources {
			if err := l.slice(ctx, source); err != nil && ctx.Err() == nil {
				l.log.ErrorContext(ctx, "projection: comparison failed", "aggregate_type", source.Type, "err", err)
			}
		}
	}
}

// loggedDifferences is how many differences of a slice are logged one by one.
const loggedDifferences = 10

// slice compares a slice, if one is due.
func (l *Loop) slice(ctx context.Context, source Source) error {
	l.beats.Beat()
	slice, ok, err := l.progress.Claim(ctx, source.Type, l.cfg.Interval)
	if err != nil || !ok {
		return err
	}
	result, err := Compare(ctx, l.cfg, source, slice.After, l.cfg.SliceRows, l.beats.Beat)
	if err != nil {
		return err
	}
	l.compared.Add(ctx, result.Rows, metric.WithAttributes(attribute.String("aggregate_type", source.Type)))
	for _, d := range result.Differences[:min(len(result.Differences), loggedDifferences)] {
		l.log.WarnContext(ctx, "projection: entry differs from its owner", "aggregate_type", d.Type, "id", d.ID, "kind", d.Kind,
			"owner_version", d.OwnerVersion, "version", d.Version, "fields", d.Fields)
	}
	saved, err := l.progress.Save(ctx, slice, result, l.cfg.Pass)
	if err == nil && saved && len(result.Differences) > 0 {
		l.log.WarnContext(ctx, "projection: entries differ from their owner: run `server projection compare`",
			"aggregate_type", source.Type, "differences", len(result.Differences))
	}
	return err
}
