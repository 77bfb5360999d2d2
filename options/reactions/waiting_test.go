package reactions

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// measuredTimers are timers of which two wait. If they are silent, the database does not
// respond.
type measuredTimers struct {
	Timers
	silent bool
}

func (m measuredTimers) Waiting(ctx context.Context, _ int) (time.Duration, int64, error) {
	if m.silent {
		<-ctx.Done()
		return 0, 0, ctx.Err()
	}
	return 3 * time.Second, 2, nil
}

// While the database does not respond for two aggregate types, all other metrics are read: after
// two seconds for each type, or within a shorter deadline, as at the end of the process.
func TestTimersAreObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
		types := map[string]Timers{"order": measuredTimers{silent: true}, "payment": measuredTimers{}, "refund": measuredTimers{silent: true}}
		must(t, observe(meter, types))
		for _, limit := range []struct{ has, takes time.Duration }{{time.Minute, 4 * time.Second}, {time.Second, 750 * time.Millisecond}} {
			ctx, cancel := context.WithTimeout(t.Context(), limit.has)
			defer cancel()
			start := time.Now()
			var data metricdata.ResourceMetrics
			must(t, reader.Collect(ctx, &data))
			if took := time.Since(start); took != limit.takes {
				t.Errorf("Collect() within %s took %s, want %s", limit.has, took, limit.takes)
			}
			got := make(map[string]float64)
			for _, m := range data.ScopeMetrics[0].Metrics {
				switch gauge := m.Data.(type) {
				case metricdata.Gauge[int64]:
					for _, p := range gauge.DataPoints {
						of, _ := p.Attributes.Value("aggregate_type")
						got[m.Name+" "+of.AsString()] = float64(p.Value)
					}
				case metricdata.Gauge[float64]:
					for _, p := range gauge.DataPoints {
						of, _ := p.Attributes.Value("aggregate_type")
						got[m.Name+" "+of.AsString()] = p.Value
					}
				}
			}
			if diff := cmp.Diff(map[string]float64{"timer.waiting payment": 2, "timer.oldest.lateness payment": 3}, got); diff != "" {
				t.Errorf("metrics within %s (-want +got):\n%s", limit.has, diff)
			}
			time.Sleep(time.Minute) // until the next sample
		}
	})
}
