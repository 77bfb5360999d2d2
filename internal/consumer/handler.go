package consumer

import (
	"context"
	"fmt"

	"example.com/videocatalog/internal/envelope"
)

// Handler decodes and applies the events of one aggregate type. Handle makes a Handler.
type Handler struct {
	types  []string
	decode func(envelope.Message) (any, error)
	apply  func(ctx context.Context, consumer string, events []any) ([]envelope.Outcome, error)
}

// Handle makes a Handler from two functions, which are called concurrently. types are the
// event types that this build knows. Other types are counted, and decoded in the same way.
// decode returns an error for an event that this build cannot apply. apply applies events
// in one transaction and returns one outcome per event, in the same order; if it returns an
// error, no event took effect.
func Handle[E any](types []string, decode func(envelope.Message) (E, error), apply func(ctx context.Context, consumer string, events []E) ([]envelope.Outcome, error)) Handler {
	return Handler{
		types:  types,
		decode: func(m envelope.Message) (any, error) { return decode(m) },
		apply: func(ctx context.Context, consumer string, decoded []any) ([]envelope.Outcome, error) {
			events := make([]E, len(decoded))
			for i := range decoded {
				events[i], _ = decoded[i].(E) // decode returned an E
			}
			return apply(ctx, consumer, events)
		},
	}
}

// Handlers maps each aggregate type of a subscription to its handler.
type Handlers map[string]Handler

// Decode decodes a message, as a Projector would.
func (h Handlers) Decode(attributes map[string]string, data []byte) (any, error) {
	_, decoded, err := h.decode(attributes, data)
	return decoded, err
}

// Replay decodes and applies a message of the quarantine, as a Projector would.
func (h Handlers) Replay(ctx context.Context, consumer string, attributes map[string]string, data []byte) error {
	handler, e, err := h.decode(attributes, data)
	if err != nil {
		return err
	}
	_, err = handler.apply(ctx, consumer, []any{e})
	return err
}

// decode returns an event with its handler.
func (h Handlers) decode(attributes map[string]string, data []byte) (Handler, any, error) {
	m, err := envelope.Parse(attributes, data)
	if err != nil {
		return Handler{}, nil, err
	}
	handler, ok := h[m.AggregateType]
	if !ok {
		return Handler{}, nil, fmt.Errorf("aggregate type %q has no handler here", m.AggregateType)
	}
	e, err := handler.decode(m)
	return handler, e, err
}
