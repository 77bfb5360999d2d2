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

// SeekResult is what a seek did. Its items are the events that the inbox had.
type SeekResult struct {
	Result
	// Generation is that of the inbox.
	Generation int64 `json:"generation,omitempty"`
}

// Seekable is a subscription, with the inbox of its consumer.
type Seekable interface {
	// CountApplied counts the events that the inbox has. It reads the whole inbox: some
	// seconds for ten million events.
	CountApplied(ctx context.Context, f Filter) (int64, error)
	// Forget makes the inbox empty, and appends the entry, in one transaction.
	Forget(ctx context.Context, e Entry) (generation int64, err error)
	// DeliverSince has the broker deliver the messages since a time again.
	DeliverSince(ctx context.Context, since time.Time) error
}

// Seeker runs Seek for a request.
type Seeker func(context.Context, SeekRequest) (SeekResult, error)

// Seek has the broker deliver the retained messages of a subscription since a time once more,
// and its consumer apply them: it first empties the inbox.
// Versions decide as always: an entry that lacks an event gets it, and an entry that is
// damaged at its present version, or ahead, stays as it is. For those there is a repair.
//
// A crash between the two steps leaves an empty inbox, which is harmless: run it again. The
// error is problem.Invalid for a wrong request.
func Seek(ctx context.Context, s Seekable, r SeekRequest) (result SeekResult, err error) {
	switch {
	case r.From.IsZero() || r.From.UnixMilli() < 0:
		return result, problem.InvalidField("from", "must be a time, and 1970 or later")
	case r.From.After(time.Now()):
		return result, problem.InvalidField("from", "must not be in the future: the broker would drop the messages until then")
	}
	run, err := begin(ctx, r.Request, ActionSeek, s.CountApplied)
	result.Result = run.Result
	if err != nil || r.DryRun {
		return result, err
	}
	if run.entry.Filter, err = json.Marshal(seekSelection{Subscription: r.Filter.ID, From: r.From}); err != nil {
		return result, fmt.Errorf("%s: %w", ActionSeek, err)
	}
	if result.Generation, err = s.Forget(ctx, run.entry); err != nil {
		return result, err
	}
	if err = s.DeliverSince(ctx, r.From); err != nil {
		return result, &problem.Error{Kind: problem.Unavailable, Message: "the inbox is empty, and no message comes again: remove the cause, and seek again", Err: err}
	}
	result.Done = run.Matched
	return result, nil
}

// seekSelection is the filter of an entry in the audit.
type seekSelection struct {
	Subscription string    `json:"subscription"`
	From         time.Time `json:"from"`
}
