package console

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// ProcessSample is what only a process of the service knows. Counters begin with the process.
type ProcessSample struct {
	Time       time.Time // zero: never read
	Err        string    // why it could not be read; empty: it could
	Breaker    bool      // the publisher considers the broker unavailable
	PausedKeys float64   // ordering keys of which nothing is sent now
	Published  float64
	Fenced     float64 // settlements that the fence rejected
	InHand     float64 // messages received and not yet acknowledged
	Applied    float64
	Duplicates float64
	Gaps       float64
	Stale      float64
	Conflicts  float64
}

// scraper reads the metrics of a process.
type scraper struct {
	url    string
	client http.Client
}

// scrapeTimeout is how long a process may take to answer.
const scrapeTimeout = 2 * time.Second

func newScraper(url string) *scraper {
	return &scraper{url: url, client: http.Client{Timeout: scrapeTimeout}}
}

// scrape reads the metrics. If that fails, it returns the last ones with the reason.
func (s *scraper) scrape(ctx context.Context, last ProcessSample) ProcessSample {
	families, err := s.read(ctx)
	if err != nil {
		last.Err = reasonOf(err)
		return last
	}
	outcome := func(name string) float64 { return sum(families["consumer_events_total"], "outcome", name) }
	return ProcessSample{
		Time: time.Now(), Breaker: sum(families["outbox_breaker_open"], "", "") > 0,
		PausedKeys: sum(families["outbox_paused_keys"], "", ""),
		Published:  sum(families["outbox_events_total"], "outcome", "published"), Fenced: sum(families["outbox_lost_leases_total"], "", ""),
		InHand: sum(families["consumer_messages"], "", ""), Applied: outcome("applied") + outcome("applied_after_gap"),
		Duplicates: outcome("duplicate"), Gaps: outcome("applied_after_gap"), Stale: outcome("stale"), Conflicts: outcome("conflict"),
	}
}

func (s *scraper) read(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read metrics: %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	const most = 16 << 20
	families, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, most))
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return families, nil
}

// sum adds up the values of a counter or gauge. With a label it adds only those with its value.
func sum(family *dto.MetricFamily, label, value string) (total float64) {
	for _, m := range family.GetMetric() {
		matches := label == ""
		for _, pair := range m.GetLabel() {
			matches = matches || pair.GetName() == label && pair.GetValue() == value
		}
		if matches {
			total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return total
}
