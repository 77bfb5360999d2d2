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
