package consumer

import (
	"context"
	"fmt"
	"runtime/debug"

	"example.com/videocatalog/internal/envelope"
)

// Handler decodes and applies the events of one aggregate type. Handle makes a Handler.
type Handler struct {
	decode func(envelope.Message) (any, error)
	apply  func(ctx context.Context, consumer string, deliveries []*delivery) ([]envelope.Outcome, error)
}

// Handle makes a Handler from two functions, which are called concurrently. decode returns an
// error for an event that this build cannot apply. apply applies events in one transaction and
// returns one outcome per event, in the same order; if it returns an error, no event took
// effect. It gets at least one event, and only those that decode returned without an error.
func Handle[E any](decode func(envelope.Message) (E, error), apply func(ctx context.Context, consumer string, events []E) ([]envelope.Outcome, error)) Handler {
	return Handler{
		decode: func(m envelope.Message) (any, error) { return decode(m) },
		apply: func(ctx context.Context, consumer string, deliveries []*delivery) ([]envelope.Outcome, error) {
			events := make([]E, len(deliveries))
			for i, d := range deliveries {
				events[i] = d.event.(E) //nolint:forcetypeassert // decode returned it
			}
			return apply(ctx, consumer, events)
		},
	}
}

// Handlers maps each aggregate type of a subscription to its handler.
type Handlers map[string]Handler

// Replay decodes and applies a message of the quarantine, as a Receiver would.
func (h Handlers) Replay(ctx context.Context, consumer string, attributes map[string]string, data []byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	m, event, err := h.decode(attributes, data)
	if err != nil {
		return err
	}
	_, err = h[m.AggregateType].apply(ctx, consumer, []*delivery{{event: event}})
	return err
}

// decode returns the envelope of a message, and its event.
func (h Handlers) decode(attributes map[string]string, data []byte) (m envelope.Message, event any, err error) {
	if m, err = envelope.Parse(attributes, data); err != nil {
		return m, nil, err
	}
	handler, ok := h[m.AggregateType]
	if !ok {
		return m, nil, fmt.Errorf("aggregate type %q has no handler here", m.AggregateType)
	}
	event, err = handler.decode(m)
	return m, event, err
}
