package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// errUsage points a person who mistyped a command to the list of commands.
var errUsage = errors.New("unknown command: try `server help`")

const (
	// listRows is how many blocked aggregates are listed at most, parked ones first.
	listRows = 1000
	// quarantineRows is how many messages are read at a time. Each may have 10 MB.
	quarantineRows = 20
)

func migrate(ctx context.Context, cfg config, stdout io.Writer, log *slog.Logger) error {
	n, err := db.Migrate(ctx, cfg.DatabaseURL, log)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "schema is at version %d (%d migrations run)\n", db.Version(), n)
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

func outboxCommand(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	database, err := openDatabase(ctx, cfg, sides{commands: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	events := store.NewOutbox(database.commands.own)
	switch {
	case len(args) == 1 && args[0] == "list":
		return listBlocked(ctx, events, stdout)
	case len(args) == 2 && args[0] == "requeue" && args[1] == "--all":
		return requeueParked(ctx, events, stdout)
	case len(args) == 3 && args[0] == "requeue":
		return events.RequeueEvent(ctx, envelope.Aggregate{Type: args[1], ID: args[2]})
	case len(args) == 4 && args[0] == "skip":
		eventID, err := uuid.Parse(args[3])
		if err != nil {
			return fmt.Errorf("EVENT_ID: %w", err)
		}
		return events.SkipEvent(ctx, envelope.Aggregate{Type: args[1], ID: args[2]}, eventID)
	}
	return errUsage
}

func listBlocked(ctx context.Context, events *store.Outbox, stdout io.Writer) error {
	blocked, err := events.ListBlocked(ctx, listRows)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TYPE\tID\tVERSION\tEVENT_ID\tATTEMPTS\tNEXT\tLAST ERROR")
	for _, b := range blocked {
		next := "parked since " + b.ParkedAt.Format(time.RFC3339)
		if b.ParkedAt.IsZero() {
			next = b.NextRetry.Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%d\t%s\t%s\n", b.Type, b.ID, b.Version, b.EventID, b.Attempts, next, b.LastError)
	}
	return table.Flush()
}

// requeueParked makes all parked aggregates try again, each once. Blocked aggregates that
// are not parked try again by themselves.
func requeueParked(ctx context.Context, events *store.Outbox, stdout io.Writer) error {
	requeued := map[envelope.Aggregate]bool{}
	for before := -1; before < len(requeued); {
		before = len(requeued)
		blocked, err := events.ListBlocked(ctx, listRows) // parked ones first
		if err != nil {
			return err
		}
		for _, b := range blocked {
			if b.ParkedAt.IsZero() || requeued[b.Aggregate] {
				continue
			}
			err := events.RequeueEvent(ctx, b.Aggregate)
			if known, ok := errors.AsType[*problem.Error](err); ok && known.Kind == problem.NotFound {
				continue // another process or person was faster
			}
			if err != nil {
				return fmt.Errorf("after %d aggregates: %w", len(requeued), err)
			}
			requeued[b.Aggregate] = true
		}
	}
	_, err := fmt.Fprintf(stdout, "requeued %d aggregates\n", len(requeued))
	return err
}

func quarantineCommand(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	database, err := openDatabase(ctx, cfg, sides{queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	inbox := store.NewInbox(database.queries.own)
	subscribed := subscriptions(registrations(cfg, database.queries.own))
	switch {
	case len(args) == 1 && args[0] == "list":
		return listQuarantine(ctx, inbox, subscribed, stdout)
	case len(args) == 1 && args[0] == "replay":
		return replayQuarantine(ctx, inbox, subscribed, stdout)
	case len(args) == 2 && args[0] == "delete":
		id, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return fmt.Errorf("ID: %w", err)
		}
		return inbox.DeleteQuarantine(ctx, id)
	}
	return errUsage
}

// eachQuarantined calls do for every message in quarantine, subscription by subscription,
// oldest first.
func eachQuarantined(ctx context.Context, inbox *store.Inbox, subscribed []subscription, do func(subscription, store.QuarantinedRow) error) error {
	for _, s := range subscribed {
		for after, more := int64(0), true; more; {
			rows, err := inbox.ListQuarantine(ctx, s.consumer, after, quarantineRows)
			if err != nil {
				return err
			}
			for _, row := range rows {
				after = row.ID
				if err := do(s, row); err != nil {
					return err
				}
			}
			more = len(rows) == quarantineRows
		}
	}
	return nil
}

func listQuarantine(ctx context.Context, inbox *store.Inbox, subscribed []subscription, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tMESSAGE_ID\tORDERING_KEY\tBYTES\tREASON")
	err := eachQuarantined(ctx, inbox, subscribed, func(_ subscription, row store.QuarantinedRow) error {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", row.ID, row.MessageID, row.OrderingKey, bytesOf(row), row.Reason)
		return nil
	})
	if err != nil {
		return err
	}
	return table.Flush()
}

// bytesOf returns the length of a payload as text. If the payload was not kept, it adds
// that and the hash.
func bytesOf(row store.QuarantinedRow) string {
	if row.PayloadSHA256 != "" {
		return fmt.Sprintf("%d, not kept, SHA-256 %s", row.PayloadSize, row.PayloadSHA256)
	}
	return strconv.Itoa(len(row.Payload))
}

// errNotKept means that a message cannot be replayed.
var errNotKept = errors.New("its payload was not kept, because the quarantine was full: have it delivered again, see docs/operations.md")

// replay applies one message of the quarantine.
func replay(ctx context.Context, s subscription, row store.QuarantinedRow) error {
	if row.PayloadSHA256 != "" {
		return errNotKept
	}
	return s.handlers.Replay(ctx, s.consumer, row.Attributes, row.Payload)
}

// replayQuarantine applies the messages that this build can decode, and deletes them. A
// crash between the two steps applies a message twice, which is harmless because of the
// inbox and the version.
func replayQuarantine(ctx context.Context, inbox *store.Inbox, subscribed []subscription, stdout io.Writer) error {
	applied, left := 0, 0
	err := eachQuarantined(ctx, inbox, subscribed, func(s subscription, row store.QuarantinedRow) error {
		if err := replay(ctx, s, row); err != nil {
			left++
			_, err := fmt.Fprintf(stdout, "left %d (message %s): %v\n", row.ID, row.MessageID, err)
			return err
		}
		applied++
		return inbox.DeleteQuarantine(ctx, row.ID)
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "replayed %d messages, %d are left\n", applied, left)
	return err
}
