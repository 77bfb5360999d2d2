package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
)

// Actor is who does an action.
type Actor struct {
	Name string // a person, or the operating-system user and host: 1 to 200 characters; empty if neither is known
	Via  string // command or console
}

// Entry is an action as the table audit has it, without the items.
type Entry struct {
	Actor

	ActionID uuid.UUID
	Action   string
	Filter   json.RawMessage // what the action is about
	Reason   string
}

// NewEntry returns the entry of an action. selected says what the action is about, and becomes
// JSON. For a wrong reason or actor the error is problem.Invalid, and names the flag.
func NewEntry(action string, selected any, actor Actor, reason string) (e Entry, err error) {
	e = Entry{Actor: actor, Action: action, Reason: strings.TrimSpace(reason)}
	if !isText(e.Reason, MaxReason) {
		return e, problem.InvalidField("--why", "must say why, in 1 to %d characters", MaxReason)
	}
	if !isText(actor.Name, maxActor) {
		return e, problem.InvalidField("--by", "must say who, as --by NAME, in 1 to %d characters", maxActor)
	}
	if e.Filter, err = json.Marshal(selected); err != nil {
		return e, fmt.Errorf("%s: %w", action, err)
	}
	e.ActionID, err = uuid.NewV7()
	return e, err
}

// The limits of a text in the audit, in characters.
const (
	MaxReason = 500
	maxActor  = 200
)

// isText reports whether PostgreSQL can store a text, and it is neither blank nor longer than most
// characters.
func isText(text string, most int) bool {
	return strings.TrimSpace(text) != "" && utf8.RuneCountInString(text) <= most && utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}

// PruneAudit deletes at most maxRows entries that are older than olderThan, by the clock of
// the database, and returns how many. It never deletes an entry of the last 30 days.
func (o *Outbox) PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := o.queries.PruneCommandAudit(ctx, olderThan, Limit(maxRows))
	return n, Wrap(err, "prune audit")
}

// PruneAudit deletes old entries of the query side. See [Outbox.PruneAudit].
func (b *Inbox) PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneQueryAudit(ctx, olderThan, Limit(maxRows))
	return n, Wrap(err, "prune audit")
}
