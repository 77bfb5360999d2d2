package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/store"
)

func migrate(ctx context.Context, s *Service, _ []string, stdout io.Writer) error {
	n, err := db.Migrate(ctx, s.cfg.DatabaseURL, s.Log, s.cfg.program.migrations()...)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "the schema is up to date (%d migrations run)\n", n)
	return err
}

// drain publishes the events that are pending at its start, except events of blocked aggregates.
// If a publisher has died, drain waits until the leases of its lanes end.
func drain(ctx context.Context, s *Service, _ []string, stdout io.Writer) error {
	if err := s.Open(ctx, true, false); err != nil {
		return err
	}
	events := store.NewOutbox(s.Commands)
	publisher, err := s.newPublisher(ctx, events)
	if err != nil {
		return err
	}
	published, start := 0, time.Now()
	for again := time.Tick(200 * time.Millisecond); ; { // another process may have a lease
		n, err := publisher.Drain(ctx)
		published += n
		if err != nil {
			return fmt.Errorf("after %d events: %w", published, err)
		}
		backlog, err := events.Measure(ctx, 10_000)
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

// operator runs one of the commands of package operate, also while the database of one side is
// unavailable.
func operator(ctx context.Context, s *Service, args []string, stdout io.Writer) error {
	return operate.Run(ctx, s.Command, args, stdout, func(ctx context.Context) (operate.Sides, error) {
		sides := operate.Sides{Replay: s.Replay}
		for _, subscribed := range s.cfg.program.projected() {
			sides.Consumers = append(sides.Consumers, subscribed.Consumer)
		}
		commandsErr, queriesErr := s.Open(ctx, true, false), s.Open(ctx, false, true)
		if commandsErr == nil {
			sides.Outbox = store.NewOutbox(s.Commands)
		}
		if queriesErr == nil {
			sides.Inbox = store.NewInbox(s.Queries)
		}
		return sides, errors.Join(commandsErr, queriesErr)
	})
}
