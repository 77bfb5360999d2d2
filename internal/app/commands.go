package app

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/store"
)

func migrate(ctx context.Context, s *Service, stdout io.Writer) error {
	n, err := db.Migrate(ctx, s.cfg.DatabaseURL, s.Log, s.cfg.program.migrations()...)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "the schema is up to date (%d migrations run)\n", n)
	return err
}

// drain publishes all pending events of aggregates that are not blocked. If a publisher has
// died, drain waits until the leases of its lanes end.
func drain(ctx context.Context, s *Service, stdout io.Writer) error {
	if err := s.Open(ctx, true, false); err != nil {
		return err
	}
	events := store.NewOutbox(s.Commands)
	publisher, err := s.newPublisher(ctx, events)
	if err != nil {
		return err
	}
	published, start := 0, time.Now()
	for again := time.Tick(200 * time.Millisecond); ; { // another process has the lease
		n, err := publisher.Drain(ctx)
		published += n
		if err != nil {
			return fmt.Errorf("after %d events: %w", published, err)
		}
		backlog, err := events.Measure(ctx, 1)
		if err != nil {
			return err
		}
		if backlog.Oldest.IsZero() || backlog.Oldest.After(start) { // later events are not part of this drain
			_, err := fmt.Fprintf(stdout, "published %d events; %d aggregates are blocked, %d of them parked\n", published, backlog.Blocked, backlog.Parked)
			return err
		}
		select {
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// operator runs one of the commands of package operate.
func operator(ctx context.Context, s *Service, args []string, stdout io.Writer) error {
	var consumers []string
	for _, subscribed := range s.cfg.program.projected() {
		consumers = append(consumers, subscribed.Consumer)
	}
	return operate.Run(ctx, operate.Service{
		Version: s.cfg.program.Version, Consumers: consumers, Replay: s.Replay,
		Commands: func(ctx context.Context) (*pgxpool.Pool, error) {
			err := s.Open(ctx, true, false)
			return s.Commands, err
		},
		Queries: func(ctx context.Context) (*pgxpool.Pool, error) {
			err := s.Open(ctx, false, true)
			return s.Queries, err
		},
	}, s.Command, args, stdout)
}
