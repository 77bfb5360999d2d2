package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"example.com/videocatalog/internal/problem"
)

// Quarantine has the messages that the query side could not decode.
type Quarantine interface {
	// GroupQuarantine returns the messages by cause, the largest group first.
	GroupQuarantine(ctx context.Context, maxRows int) ([]Group, error)
	// ListQuarantine returns messages that match, in the order in which they were set
	// aside, behind the one with the id after. If the filter has an id that is no number,
	// the error is problem.Invalid.
	ListQuarantine(ctx context.Context, filter Filter, after int64, maxRows int) ([]Quarantined, error)
	// CountQuarantine counts the messages that match.
	CountQuarantine(ctx context.Context, filter Filter) (int64, error)
	// QuarantinedPayload returns the payload of a message; nil if it is not kept. If the
	// message does not exist, the error is problem.NotFound.
	QuarantinedPayload(ctx context.Context, id int64) ([]byte, error)
	// DeleteQuarantine deletes messages and appends the entry, in one transaction. It
	// returns how many were still there.
	DeleteQuarantine(ctx context.Context, ids []int64, entry Entry) (int, error)
}

// Apply applies a message that was in quarantine, as the projector would have.
type Apply func(ctx context.Context, m Quarantined) error

// replayRows is how many messages are applied before those are deleted in one transaction.
const replayRows = 20

// errNotKept means that a message cannot be replayed.
var errNotKept = errors.New("its payload was not kept, because the quarantine was full: have it delivered again, see docs/operations.md#a-message-was-quarantined")

// Replay applies messages, and deletes those that apply has applied. The others stay, and
// the result names them. A crash before the deletion leaves messages that are applied:
// another replay applies them again, which the inbox and the version make harmless. If a
// named message does not exist, the error is problem.NotFound.
func Replay(ctx context.Context, quarantine Quarantine, apply Apply, r Request) (Result, error) {
	return actOnQuarantine(ctx, quarantine, r, ActionReplay, replayRows, func(m Quarantined) error {
		if m.PayloadSHA256 != "" {
			return errNotKept
		}
		payload, err := quarantine.QuarantinedPayload(ctx, m.ID)
		if err != nil {
			return err
		}
		m.Payload = payload
		return apply(ctx, m)
	})
}

// Delete deletes messages permanently. If a named message does not exist, the error is
// problem.NotFound.
func Delete(ctx context.Context, quarantine Quarantine, r Request) (Result, error) {
	return actOnQuarantine(ctx, quarantine, r, ActionDelete, actionRows, func(Quarantined) error { return nil })
}

// actOnQuarantine goes through the messages that match, and deletes those for which do
// succeeds.
func actOnQuarantine(ctx context.Context, quarantine Quarantine, r Request, action string, maxRows int, do func(Quarantined) error) (Result, error) {
	run, err := begin(ctx, r, action, quarantine.CountQuarantine)
	if err != nil || r.DryRun {
		return run.Result, err
	}
	var after int64
	for run.rows() > 0 {
		messages, err := quarantine.ListQuarantine(ctx, r.Filter, after, min(maxRows, run.rows()))
		if err != nil {
			return run.Result, err
		}
		if len(messages) == 0 {
			break
		}
		after = messages[len(messages)-1].ID
		var ids []int64
		for _, m := range messages {
			if ctx.Err() != nil {
				break
			}
			if err := do(m); err == nil {
				ids = append(ids, m.ID)
			} else if ctx.Err() == nil {
				run.failed(strconv.FormatInt(m.ID, 10), err)
			}
		}
		if err := run.delete(ctx, quarantine, ids); err != nil {
			return run.Result, err
		}
		if err := ctx.Err(); err != nil {
			return run.Result, fmt.Errorf("%s: %w", action, err)
		}
	}
	if r.Filter.ID != "" && run.Done+run.Failures == 0 {
		return run.Result, problem.Errorf(problem.NotFound, "message %s is not in quarantine", r.Filter.ID)
	}
	return run.Result, nil
}

// deleteTimeout is how long an action may take to record what it has done.
const deleteTimeout = 10 * time.Second

// delete deletes messages that are done, with their audit, also after an interrupt.
func (a *action) delete(ctx context.Context, quarantine Quarantine, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	deleted, err := quarantine.DeleteQuarantine(ctx, ids, a.entry)
	if err == nil {
		a.done(deleted)
	}
	return err
}
