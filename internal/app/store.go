package app

import (
	"context"

	"example.com/videocatalog/internal/outbox"
)

// NewStore makes what the publisher of a process claims from, in place of events, which are of CommandPool.
type NewStore func(ctx context.Context, p *Process, events outbox.Store) (outbox.Store, error)

// newStore returns the store of the option that makes one, or events.
func (p *Process) newStore(ctx context.Context, events outbox.Store) (outbox.Store, error) {
	for _, option := range p.cfg.program.Options {
		if option.NewStore != nil {
			return option.NewStore(ctx, p, events)
		}
	}
	return events, nil
}
