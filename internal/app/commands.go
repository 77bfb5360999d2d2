package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
)

func migrate(ctx context.Context, cfg config, stdout io.Writer, log *slog.Logger) error {
	n, err := db.Migrate(ctx, cfg.DatabaseURL, log, cfg.program.migrations()...)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "the schema is up to date (%d migrations run)\n", n)
	return err
}

// drain publishes all pending events of aggregates that are not blocked. If a publisher has
// died, drain waits until the leases of its lanes end.
func drain(ctx context.Context, cfg config, stdout io.Writer, log *slog.Logger) error {
	database, err := openDatabase(ctx, cfg, sides{commands: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	client, err := openPubSub(ctx, cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	events := store.NewOutbox(database.commands.own)
	topics := openTopics(client, cfg)
	defer closeTopics(topics)
	publisher, err := outbox.New(events, topics, cfg.outbox, log, nil)
	if err != nil {
		return err
	}
	published := 0
	start := time.Now()
	for {
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
		if !sleep(ctx, 200*time.Millisecond) { // another process has the lease
			return ctx.Err()
		}
	}
}
