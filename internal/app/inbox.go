package app

import (
	"context"
	"io"
	"strconv"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// inboxSide is the inbox of a side.
type inboxSide interface {
	Parts(ctx context.Context, consumerName string) ([]store.InboxPart, error)
	MeasurePart(ctx context.Context, part store.InboxPart) (store.InboxRows, error)
	EventsOf(ctx context.Context, part store.InboxPart, ids []uuid.UUID) ([]store.InboxEvent, error)
}

// inboxCommand shows which events the consumers of both sides have applied. It changes
// nothing.
func inboxCommand(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	command, o, err := parseCommand("inbox", args)
	if err != nil {
		return err
	}
	if command != "list" || len(o.args) > 0 || o.All {
		return errUsage
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true, queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	inboxes := []inboxSide{store.NewReactions(database.commands.own), store.NewInbox(database.queries.own)}
	if o.Filter.ID == "" {
		return listInbox(ctx, inboxes, o.consumer, o, stdout)
	}
	// An inbox has only the ids of events. The outbox has their aggregates.
	ids, err := store.NewOutbox(database.commands.own).EventIDs(ctx, o.Filter.ID)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return problem.Errorf(problem.NotFound, "the outbox has no event of %q", o.Filter.ID)
	}
	return listApplied(ctx, inboxes, ids, o, stdout)
}

// listInbox shows how many events the inboxes have of a consumer; empty: of all.
func listInbox(ctx context.Context, inboxes []inboxSide, consumerName string, o operation, stdout io.Writer) error {
	p := newPrinter(stdout, o.json, "SIDE", "CONSUMER", "GENERATION", "PRESENT", "ROWS", "OLDEST", "NEWEST")
	for _, inbox := range inboxes {
		parts, err := inbox.Parts(ctx, consumerName)
		if err != nil {
			return err
		}
		for _, part := range parts {
			rows, err := inbox.MeasurePart(ctx, part)
			if err != nil {
				return err
			}
			p.row(rows, append(partCells(part), strconv.FormatInt(rows.Rows, 10), timeText(rows.Oldest), timeText(rows.Newest))...)
		}
	}
	return p.end()
}

// listApplied shows which of some events were applied, and when.
func listApplied(ctx context.Context, inboxes []inboxSide, ids []uuid.UUID, o operation, stdout io.Writer) error {
	p := newPrinter(stdout, o.json, "SIDE", "CONSUMER", "GENERATION", "PRESENT", "EVENT_ID", "APPLIED")
	for _, inbox := range inboxes {
		parts, err := inbox.Parts(ctx, o.consumer)
		if err != nil {
			return err
		}
		for _, part := range parts {
			events, err := inbox.EventsOf(ctx, part, ids)
			if err != nil {
				return err
			}
			for _, e := range events {
				p.row(e, append(partCells(part), e.EventID.String(), timeText(e.Time))...)
			}
		}
	}
	return p.end()
}

// partCells are the first cells of each row.
func partCells(p store.InboxPart) []string {
	return []string{p.Side, p.Consumer, strconv.FormatInt(p.Generation, 10), strconv.FormatBool(p.Present)}
}
