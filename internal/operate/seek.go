package operate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
)

// actionSeek is the action, as the table audit names it.
const actionSeek = "inbox.seek"

// Seek makes the broker deliver the retained messages of a subscription since a time again. Its
// consumer applies them. Versions decide as always: an entry that lacks an event gets it, and an
// entry that is damaged at its present version, or ahead, stays as it is.
type Seek struct {
	Operation

	Subscription, Consumer string
	Since                  time.Time
	entry                  pg.Entry
}

// SeekResult is what a seek did.
type SeekResult struct {
	ActionID uuid.UUID `json:"action_id,omitzero"` // zero after a dry run
	Matched  int64     `json:"matched"`            // events that the inbox had
	Done     int64     `json:"done"`               // events that it has forgotten
}

// ParseSeek reads the flags, SUBSCRIPTION and TIME. consumers are the consumers of the subscriptions of the
// query side, by their IDs.
func ParseSeek(args []string, consumers map[string]string) (s Seek, err error) {
	if s.Operation, err = ParseOperation(args, nil); err != nil {
		return s, fmt.Errorf("seek: %w", err)
	}
	if len(s.Args) != 2 {
		return s, fmt.Errorf("seek has %d arguments, want SUBSCRIPTION and TIME: try `server seek --help`", len(s.Args))
	}
	s.Subscription, s.Consumer = s.Args[0], consumers[s.Args[0]]
	s.Since, err = time.Parse(time.RFC3339, s.Args[1])
	switch {
	case err != nil:
		return s, fmt.Errorf("TIME %q: want a time such as 2026-01-31T12:00:00Z", s.Args[1])
	case s.Since.After(time.Now()):
		return s, fmt.Errorf("TIME %q must not be in the future: the broker would drop the messages until then", s.Args[1])
	case s.Consumer == "":
		return s, fmt.Errorf("SUBSCRIPTION %q must be one of the query side: %s", s.Subscription, strings.Join(slices.Sorted(maps.Keys(consumers)), ", "))
	}
	s.entry, err = s.Entry(actionSeek, map[string]any{"subscription": s.Subscription, "from": s.Since})
	return s, err
}

// Run empties the inbox of the consumer in the database of the query side, calls deliver, which makes the broker
// deliver again, and prints the result. A dry run only counts.
//
// The inbox is emptied first: an event that comes again while its id is there counts as a
// duplicate. A crash before deliver leaves an inbox with fewer ids. That is harmless,
// because versions keep out duplicates: run the command again. An event that is applied between
// the two steps is recorded again, and its next delivery is rightly skipped.
func (s Seek) Run(ctx context.Context, pool *pgxpool.Pool, stdout io.Writer, deliver func(context.Context) error) (err error) {
	result, p := SeekResult{ActionID: s.entry.ActionID}, NewPrinter(stdout, s.JSON)
	if result.Matched, err = pg.CountInbox(ctx, pool, s.Consumer); err != nil {
		return err
	}
	if s.DryRun {
		p.Line("the inbox has %d events; nothing was changed", result.Matched)
		p.Row(result)
		return p.End()
	}
	if result.Done, err = pg.ForgetInbox(ctx, pool, s.Consumer, s.entry, result.Matched); err != nil {
		return err
	}
	if err := deliver(ctx); err != nil {
		return &problem.Error{Kind: problem.Unavailable, Message: "the inbox is empty, and no message comes again: remove the cause, and seek again", Err: err}
	}
	p.Line("%s delivers the messages since %s again, and the inbox has forgotten %d events; action %s", s.Subscription, s.Since.Format(time.RFC3339), result.Done, result.ActionID)
	p.Row(result)
	return p.End()
}
