package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

var _ admin.Quarantine = (*Inbox)(nil)

// QuarantineBytes is how many bytes of payloads, attributes and reasons the quarantine
// keeps. Of a message beyond that it keeps only what identifies it. Messages that are set
// aside at the same time may together exceed the limit.
const QuarantineBytes = 256 << 20

// Quarantine stores a message for a consumer, once: a repeated call is no error. It can
// store any content, because a message that cannot be quarantined would block its ordering
// key for ever. If the quarantine is full, it stores the message without its payload: see
// QuarantineBytes.
func (b *Inbox) Quarantine(ctx context.Context, consumerName string, m envelope.Quarantined) error {
	attributes := make(map[string]string, len(m.Attributes))
	for name, value := range m.Attributes {
		attributes[escape(name)] = escape(value)
	}
	encoded, err := json.Marshal(attributes)
	if err != nil {
		return fmt.Errorf("quarantine message %s: %w", m.MessageID, err)
	}
	short, err := json.Marshal(shortAttributes(attributes))
	if err != nil {
		return fmt.Errorf("quarantine message %s: %w", m.MessageID, err)
	}
	reason := escape(m.Reason)
	err = b.queries.InsertQuarantine(ctx, sqlcgen.InsertQuarantineParams{
		Consumer: consumerName, MessageID: escape(m.MessageID), OrderingKey: escape(m.OrderingKey), Attributes: encoded, ShortAttributes: short,
		Payload: notNil(m.Payload), Reason: reason, ShortReason: shorten(reason, 1_000), PublishTime: m.PublishTime,
		MessageBytes: int64(len(m.Payload) + len(encoded) + len(reason)), MaxBytes: QuarantineBytes,
	})
	return forConsumer(wrap(err, "quarantine message %s", m.MessageID))
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
	if len(text) <= maxBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxBytes], "")
}

// GroupQuarantine implements admin.Quarantine.
func (b *Inbox) GroupQuarantine(ctx context.Context, maxRows int) ([]admin.Group, error) {
	rows, err := b.queries.GroupQuarantine(ctx, limit(maxRows))
	if err != nil {
		return nil, wrap(err, "group quarantine")
	}
	return mapSlice(rows, func(row sqlcgen.GroupQuarantineRow) admin.Group {
		return admin.Group{
			Cause: row.Cause, Sample: unescape(row.Sample), Items: row.Items, Waiting: row.Items,
			First: row.FirstTime.UTC(), Last: row.LastTime.UTC(),
		}
	}), nil
}

// ListQuarantine implements admin.Quarantine.
func (b *Inbox) ListQuarantine(ctx context.Context, filter admin.Filter, after int64, maxRows int) ([]admin.Quarantined, error) {
	id, err := messageID(filter)
	if err != nil {
		return nil, err
	}
	rows, err := b.queries.ListQuarantine(ctx, sqlcgen.ListQuarantineParams{
		ID: id, AggregateType: escape(filter.Type), Cause: filter.Cause, Age: filter.Age, AfterID: after, MaxRows: limit(maxRows),
	})
	if err != nil {
		return nil, wrap(err, "list quarantine")
	}
	messages := make([]admin.Quarantined, len(rows))
	for i, row := range rows {
		var attributes map[string]string
		if err := json.Unmarshal(row.Attributes, &attributes); err != nil {
			return nil, fmt.Errorf("read attributes of quarantined message %d: %w", row.ID, err)
		}
		messages[i] = admin.Quarantined{
			ID: row.ID, Consumer: row.Consumer, Cause: row.Cause, ReceivedAt: row.ReceivedAt.UTC(),
			Quarantined: envelope.Quarantined{
				MessageID: unescape(row.MessageID), OrderingKey: unescape(row.OrderingKey), Attributes: make(map[string]string, len(attributes)),
				Reason: unescape(row.Reason), PublishTime: row.PublishTime.UTC(),
			},
			PayloadSize: valueOf(row.PayloadSize), PayloadSHA256: valueOf(row.PayloadSha256),
		}
		for name, value := range attributes {
			messages[i].Attributes[unescape(name)] = unescape(value)
		}
	}
	return messages, nil
}

// messageID returns the number of a message in a filter; 0 if it has none.
func messageID(filter admin.Filter) (int64, error) {
	if filter.ID == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(filter.ID, 10, 64)
	if err != nil || id <= 0 {
		return 0, problem.InvalidField("filter.id", "must be the number of a message")
	}
	return id, nil
}

// CountQuarantine implements admin.Quarantine.
func (b *Inbox) CountQuarantine(ctx context.Context, filter admin.Filter) (int64, error) {
	id, err := messageID(filter)
	if err != nil {
		return 0, err
	}
	n, err := b.queries.CountQuarantine(ctx, sqlcgen.CountQuarantineParams{ID: id, AggregateType: escape(filter.Type), Cause: filter.Cause, Age: filter.Age})
	return n, wrap(err, "count quarantine")
}

// QuarantinedPayload implements admin.Quarantine.
func (b *Inbox) QuarantinedPayload(ctx context.Context, id int64) ([]byte, error) {
	payload, err := b.queries.GetQuarantinedPayload(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, problem.Errorf(problem.NotFound, "quarantined message %d does not exist", id)
	}
	return payload, wrap(err, "read quarantined message %d", id)
}

// DeleteQuarantine implements admin.Quarantine.
func (b *Inbox) DeleteQuarantine(ctx context.Context, ids []int64, e admin.Entry) (int, error) {
	deleted, err := b.queries.DeleteQuarantine(ctx, sqlcgen.DeleteQuarantineParams{
		Ids: ids, ActionID: e.ActionID, Actor: e.Actor.Name, Via: e.Actor.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
	})
	return len(deleted), wrap(err, "delete %d quarantined messages", len(ids))
}

// PruneQuarantine deletes messages of all consumers that were received longer ago than
// olderThan, by the clock of the database. It deletes at most maxRows and returns how many.
func (b *Inbox) PruneQuarantine(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneQuarantine(ctx, limit(maxRows), olderThan)
	return n, wrap(err, "prune quarantine")
}

// Escape is escape for an option.
func Escape(text string) string { return escape(text) }

// escape writes text so that PostgreSQL can store it: PostgreSQL accepts neither a NUL nor
// broken UTF-8. A text with one of these, or with a backslash, is written as in a Go
// string. Any other text is unchanged. unescape restores the original.
func escape(text string) string {
	if utf8.ValidString(text) && !strings.ContainsAny(text, "\x00\\") {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

func unescape(text string) string {
	if strings.Contains(text, `\`) {
		if original, err := strconv.Unquote(`"` + text + `"`); err == nil {
			return original
		}
	}
	return text
}
