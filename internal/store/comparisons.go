package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/reconcile"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

var _ reconcile.Progress = (*Comparisons)(nil)

// Comparisons keeps how far the comparison of each projection with its owner has come, on
// the query side. It does not know what is compared.
type Comparisons struct {
	queries *sqlcgen.Queries
}

// NewComparisons makes Comparisons over a pool.
func NewComparisons(pool *pgxpool.Pool) *Comparisons { return &Comparisons{queries: queriesOver(pool)} }

// Claim implements reconcile.Progress, by the clock of the database.
func (c *Comparisons) Claim(ctx context.Context, aggregateType string, lease time.Duration) (slice reconcile.Slice, ok bool, err error) {
	rows, err := c.queries.ClaimComparison(ctx, aggregateType, lease)
	if err != nil || len(rows) == 0 {
		return slice, false, wrap(err, "claim comparison of %s", aggregateType)
	}
	return reconcile.Slice{Type: aggregateType, Claim: rows[0].Claim, After: rows[0].AfterID}, true, nil
}

// Save implements reconcile.Progress.
func (c *Comparisons) Save(ctx context.Context, slice reconcile.Slice, result reconcile.Result, between time.Duration) (saved bool, err error) {
	n, err := c.queries.SaveComparison(ctx, sqlcgen.SaveComparisonParams{
		AggregateType: slice.Type, Claim: slice.Claim, UpTo: result.UpTo, Ended: result.UpTo == uuid.Max,
		Compared: result.Rows, Differences: int64(len(result.Differences)), Between: between,
	})
	return n == 1, wrap(err, "save comparison of %s", slice.Type)
}

// Restart begins a new pass as soon as possible, because the projection was repaired. Results
// of slices that are being compared do not count.
func (c *Comparisons) Restart(ctx context.Context, aggregateType string) error {
	return wrap(c.queries.RestartComparison(ctx, aggregateType), "restart comparison of %s", aggregateType)
}

// Observe lets a meter show the differences of each aggregate type.
func (c *Comparisons) Observe(meter metric.Meter) error {
	measures := sample[[]sqlcgen.MeasureComparisonsRow]{take: func(ctx context.Context) ([]sqlcgen.MeasureComparisonsRow, error) {
		rows, err := c.queries.MeasureComparisons(ctx)
		return rows, wrap(err, "measure comparisons")
	}}
	differences, err := meter.Int64ObservableGauge("projection.differences", metric.WithUnit("{entry}"),
		metric.WithDescription("Entries of a projection that differ from their owner, as the last complete comparison found them, or the one that runs if it has found more."),
		ahead(&measures))
	if err != nil {
		return fmt.Errorf("make instrument: %w", err)
	}
	_, err = meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		rows, err := measures.get(ctx)
		if err != nil {
			report(err)
			return nil
		}
		for _, row := range rows {
			o.ObserveInt64(differences, row.Differences, metric.WithAttributes(attribute.String("aggregate_type", row.AggregateType)))
		}
		return nil
	}, differences)
	if err != nil {
		return fmt.Errorf("register callback: %w", err)
	}
	return nil
}
