package pg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/internal/sqlcgen"
	"example.com/videocatalog/internal/problem"
)

// QuarantineBytes is how many bytes of payloads, attributes and reasons the quarantine
// keeps. Beyond that it stores a message without its payload, and shortens the attributes and
// the reason. Messages that are stored at the same time may together exceed the limit.
const QuarantineBytes = 256 << 20

// Quarantine stores a message for a consumer, once: a repeated call is no error. It can
// store any content, because a message that cannot be quarantined would block its ordering
// key for ever. If the quarantine is full, it stores the message without its payload: see
// QuarantineBytes.
func (b *Inbox) Quarantine(ctx context.Context, consumerName string, m envelope.Quarantined) error {
	attributes := make(map[string]string, len(m.Attributes))
	for name, value := range m.Attributes {
		attributes[Escape(name)] = Escape(value)
	}
	encoded, _ := json.Marshal(attributes) // a map of texts has no error
	short, _ := json.Marshal(shortAttributes(attributes))
	reason := Escape(m.Reason)
	err := b.queries.InsertQuarantine(ctx, sqlcgen.InsertQuarantineParams{
		Consumer: consumerName, MessageID: Escape(m.MessageID), OrderingKey: Escape(m.OrderingKey), Attributes: encoded, ShortAttributes: short,
		Payload: NotNil(m.Payload), Reason: reason, ShortReason: shorten(reason, 1_000), PublishTime: m.PublishTime,
		MessageBytes: int64(len(m.Payload) + len(encoded) + len(reason)), MaxBytes: QuarantineBytes,
	})
	return forConsumer(Wrap(err, "quarantine message %s", m.MessageID))
}

// shortAttributes returns the attributes that identify an event, shortened.
func shortAttributes(attributes map[string]string) map[string]string {
	short := make(map[string]string)
	for _, name := range []string{
		envelope.AttrEventID, envelope.AttrEventType, envelope.AttrAggregateType, envelope.AttrAggregateID,
		envelope.AttrVersion, envelope.AttrSchemaVersion, envelope.AttrOccurredAt, envelope.AttrTraceparent,
	} {
		if value, ok := attributes[name]; ok {
			short[name] = shorten(value, 100) // bytes; in a valid event each has fewer
		}
	}
	return short
}

func shorten(text string, maxBytes int) string {
	return strings.ToValidUTF8(text[:min(len(text), maxBytes)], "")
}

// GroupQuarantine returns the messages by cause, the largest group first.
func (b *Inbox) GroupQuarantine(ctx context.Context, maxRows int) ([]Group, error) {
	rows, err := b.queries.GroupQuarantine(ctx, Limit(maxRows))
	if err != nil {
		return nil, Wrap(err, "group quarantine")
	}
	return MapSlice(rows, func(row sqlcgen.GroupQuarantineRow) Group {
		return Group{Cause: row.Cause, Sample: Unescape(row.Sample), Items: row.Items, Waiting: row.Items, Since: row.Since.UTC()}
	}), nil
}

// ListQuarantine returns messages that match, in the order in which they were quarantined, and how
// many match in all.
func (b *Inbox) ListQuarantine(ctx context.Context, f Filter, maxRows int) (messages []Quarantined, total int64, err error) {
	rows, err := b.queries.ListQuarantine(ctx, sqlcgen.ListQuarantineParams{
		ID: Escape(f.ID), AggregateType: Escape(f.Type), AggregateID: Escape(f.Aggregate), Cause: Escape(f.Cause),
		Until: Optional(f.Until), MaxRows: Limit(maxRows),
	})
	for _, row := range rows {
		var attributes map[string]string
		if err := json.Unmarshal(row.Attributes, &attributes); err != nil {
			return nil, 0, fmt.Errorf("read attributes of quarantined message %d: %w", row.ID, err)
		}
		m := Quarantined{
			ID: row.ID, Consumer: row.Consumer, Cause: row.Cause, ReceivedAt: row.ReceivedAt.UTC(),
			Quarantined: envelope.Quarantined{
				MessageID: Unescape(row.MessageID), OrderingKey: Unescape(row.OrderingKey), Attributes: make(map[string]string, len(attributes)),
				Reason: Unescape(row.Reason), PublishTime: row.PublishTime.UTC(),
			},
			PayloadSize: ValueOf(row.PayloadSize), PayloadSHA256: ValueOf(row.PayloadSha256),
		}
		for name, value := range attributes {
			m.Attributes[Unescape(name)] = Unescape(value)
		}
		messages, total = append(messages, m), row.Total
	}
	return messages, total, Wrap(err, "list quarantine")
}

// QuarantinedPayload returns the payload of a message; nil if it is not kept. If the message does
// not exist, the error is problem.NotFound.
func (b *Inbox) QuarantinedPayload(ctx context.Context, id int64) ([]byte, error) {
	payload, err := b.queries.GetQuarantinedPayload(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, problem.Errorf(problem.NotFound, "quarantined message %d does not exist", id)
	}
	return payload, Wrap(err, "read quarantined message %d", id)
}

// DeleteQuarantine deletes messages and appends the entry to the audit, in one transaction. It
// returns how many messages it deleted.
func (b *Inbox) DeleteQuarantine(ctx context.Context, ids []int64, e Entry) (int64, error) {
	n, err := b.queries.DeleteQuarantine(ctx, sqlcgen.DeleteQuarantineParams{
		Ids: ids, ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
	})
	return n, Wrap(err, "delete %d quarantined messages", len(ids))
}

// PruneQuarantine deletes messages of all consumers that were received longer ago than
// olderThan, by the clock of the database. It deletes at most maxRows and returns how many.
func (b *Inbox) PruneQuarantine(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneQuarantine(ctx, Limit(maxRows), olderThan)
	return n, Wrap(err, "prune quarantine")
}
