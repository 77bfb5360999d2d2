package consumer

import (
	"log/slog"

	"go.opentelemetry.io/otel/metric"
)

// Subscription is where a projector gets its messages.
type Subscription = subscription

// NewFrom makes a projector of one source with a subscription of its own.
func NewFrom(cfg Config, s Subscription, consumer string, handlers Handlers, quarantine Quarantine, log *slog.Logger, meter metric.Meter) (*Projector, error) {
	return newProjector(cfg, []*source{newSource(s, consumer, handlers)}, quarantine, log, meter)
}

// Fed is a source with messages of its own.
type Fed struct {
	Subscription Subscription
	Consumer     string
	Handlers     Handlers
}

// NewFromAll makes a projector of several sources.
func NewFromAll(cfg Config, all []Fed, quarantine Quarantine, log *slog.Logger) (*Projector, error) {
	var sources []*source
	for _, f := range all {
		sources = append(sources, newSource(f.Subscription, f.Consumer, f.Handlers))
	}
	return newProjector(cfg, sources, quarantine, log, nil)
}
