package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"example.com/videocatalog/internal/problem"
)

// SeekRequest describes a seek. The id of its filter is a subscription; it has nothing else.
type SeekRequest struct {
	Request
	// From is since when messages are delivered again.
	From time.Time
}

// Seekable is a subscription, with the inbox of its consumer.
type Seekable interface {
	// CountApplied counts the events that the inbox has. It reads the whole inbox: some
	// seconds for ten million events.
	CountApplied(ctx context.Context, f Filter) (int64, error)
	// Forget appends the entry, and then empties the inbox, in short transactions. It returns
	// how many events were deleted.
	Forget(ctx context.Context, e Entry) (int64, error)
	// DeliverSince has the broker deliver the messages since a time again.
	DeliverSince(ctx context.Context, since time.Time) error
}

// Seeker runs Seek for a request.
type Seeker func(context.Context, SeekRequest) (Result, error)

// Seek has the broker deliver the retained messages of a subscription since a time once more,
// and its consumer apply them. Matched are the events that its inbox had.
// Versions decide as always: an entry that lacks an event gets it, and an entry that is
// damaged at its present version, or ahead, stays as it is. For those there is a repair.
//
// The inbox is emptied first: an event that comes again before its id is gone would count as a
// duplicate. A crash before the broker seeks leaves an inbox with fewer ids. That is harmless,
// because versions keep out what comes twice: run it again. An event that is applied between
// the two steps is recorded again, and its next delivery skipped, rightly.
//
// The error is problem.Invalid for a wrong request.
func Seek(ctx context.Context, s Seekable, r SeekRequest) (Result, error) {
	switch {
	case r.From.IsZero() || r.From.UnixMilli() < 0:
		return Result{}, problem.InvalidField("from", "must be a time, and 1970 or later")
	case r.From.After(time.Now()):
		return Result{}, problem.InvalidField("from", "must not be in the future: the broker would drop the messages until then")
	}
	run, err := begin(ctx, r.Request, ActionSeek, s.CountApplied)
	if err != nil || r.DryRun {
		return run.Result, err
	}
	entry := run.entry
	entry.Items, entry.Before, entry.After = run.Matched, json.RawMessage("[]"), json.RawMessage("[]") // the ids may be millions
	if entry.Filter, err = json.Marshal(seekSelection{Subscription: r.Filter.ID, From: r.From}); err != nil {
		return run.Result, fmt.Errorf("%s: %w", ActionSeek, err)
	}
	if run.Done, err = s.Forget(ctx, entry); err != nil {
		return run.Result, err
	}
	if err = s.DeliverSince(ctx, r.From); err != nil {
		return run.Result, &problem.Error{Kind: problem.Unavailable, Message: "the inbox is empty, and no message comes again: remove the cause, and seek again", Err: err}
	}
	return run.Result, nil
}

// seekSelection is the filter of an entry in the audit.
type seekSelection struct {
	Subscription string    `json:"subscription"`
	From         time.Time `json:"from"`
}
