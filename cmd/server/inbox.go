package main

import (
	"context"
	"io"
	"strconv"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// inboxCommand shows which events the consumers of the query side have applied. It changes
// nothing.
func inboxCommand(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	command, o, err := parseCommand("inbox", args)
	if err != nil {
		return err
	}
	if command != "list" || len(o.args) > 0 || o.All {
		return errUsage
	}
	database, err := openDatabase(ctx, cfg, sides{commands: o.Filter.ID != "", queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	inbox := store.NewInbox(database.queries.own)
	if o.Filter.ID == "" {
		return listInbox(ctx, inbox, o.consumer, o, stdout)
	}
	// The inbox has only the ids of events. The outbox has their aggregates.
	ids, err := store.NewOutbox(database.commands.own).EventIDs(ctx, o.Filter.ID)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return problem.Errorf(problem.NotFound, "the outbox has no event of %q", o.Filter.ID)
	}
	return listApplied(ctx, inbox, ids, o, stdout)
}

// listInbox shows how many events the inbox has of a consumer; empty: of all.
func listInbox(ctx context.Context, inbox *store.Inbox, consumerName string, o operation, stdout io.Writer) error {
	parts, err := inbox.Parts(ctx, consumerName)
	if err != nil {
		return err
	}
	p := newPrinter(stdout, o.json, "CONSUMER", "GENERATION", "PRESENT", "ROWS", "OLDEST", "NEWEST")
	for _, part := range parts {
		rows, err := inbox.MeasurePart(ctx, part)
		if err != nil {
			return err
		}
		p.row(rows, part.Consumer, strconv.FormatInt(part.Generation, 10), strconv.FormatBool(part.Present),
			strconv.FormatInt(rows.Rows, 10), timeText(rows.Oldest), timeText(rows.Newest))
	}
	return p.end()
}

// listApplied shows which of some events were applied, and when.
func listApplied(ctx context.Context, inbox *store.Inbox, ids []uuid.UUID, o operation, stdout io.Writer) error {
	parts, err := inbox.Parts(ctx, o.consumer)
	if err != nil {
		return err
	}
	p := newPrinter(stdout, o.json, "CONSUMER", "GENERATION", "PRESENT", "EVENT_ID", "APPLIED")
	for _, part := range parts {
		events, err := inbox.EventsOf(ctx, part, ids)
		if err != nil {
			return err
		}
		for _, e := range events {
			p.row(e, e.Consumer, strconv.FormatInt(e.Generation, 10), strconv.FormatBool(e.Present), e.EventID.String(), timeText(e.Time))
		}
	}
	return p.end()
}
