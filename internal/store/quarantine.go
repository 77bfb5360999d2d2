package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// QuarantinedRow is a message in the quarantine.
type QuarantinedRow struct {
	ID int64 // grows with every message
	envelope.Quarantined
	ReceivedAt time.Time // when it was set aside
	// If the payload is not kept, PayloadSize is its size in bytes and PayloadSHA256 its
	// hash in hexadecimal. Payload is nil then, and attributes and reason are shortened.
	// Otherwise both are zero.
	PayloadSize   int64
	PayloadSHA256 string
}

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
		MessageBytes: int64(len(m.Payload) + len(encoded) + len(reason)), MaxBytes: b.quarantineBytes,
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

// ListQuarantine returns at most maxRows messages of a consumer, in the order in which they
// were set aside. It starts behind the message with the id after; 0 means at the first one.
func (b *Inbox) ListQuarantine(ctx context.Context, consumerName string, after int64, maxRows int) ([]QuarantinedRow, error) {
	rows, err := b.queries.ListQuarantine(ctx, consumerName, after, limit(maxRows))
	if err != nil {
		return nil, wrap(err, "list quarantine")
	}
	messages := make([]QuarantinedRow, len(rows))
	for i, row := range rows {
		var attributes map[string]string
		if err := json.Unmarshal(row.Attributes, &attributes); err != nil {
			return nil, fmt.Errorf("read attributes of quarantined message %d: %w", row.ID, err)
		}
		messages[i] = QuarantinedRow{
			ID: row.ID,
			Quarantined: envelope.Quarantined{
				MessageID: unescape(row.MessageID), OrderingKey: unescape(row.OrderingKey), Attributes: make(map[string]string, len(attributes)),
				Payload: row.Payload, Reason: unescape(row.Reason), PublishTime: row.PublishTime.UTC(),
			},
			ReceivedAt: row.ReceivedAt.UTC(),
		}
		if row.Payload == nil && row.PayloadSize != nil && row.PayloadSha256 != nil {
			messages[i].PayloadSize, messages[i].PayloadSHA256 = *row.PayloadSize, *row.PayloadSha256
		}
		for name, value := range attributes {
			messages[i].Attributes[unescape(name)] = unescape(value)
		}
	}
	return messages, nil
}

// DeleteQuarantine deletes a message permanently. If it does not exist, the error is
// problem.NotFound.
func (b *Inbox) DeleteQuarantine(ctx context.Context, id int64) error {
	n, err := b.queries.DeleteQuarantine(ctx, id)
	if err != nil {
		return wrap(err, "delete quarantined message %d", id)
	}
	if n == 0 {
		return problem.Errorf(problem.NotFound, "quarantined message %d does not exist", id)
	}
	return nil
}

// PruneQuarantine deletes messages of all consumers that were received longer ago than
// olderThan, by the clock of the database. It deletes at most maxRows and returns how many.
func (b *Inbox) PruneQuarantine(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneQuarantine(ctx, limit(maxRows), olderThan)
	return n, wrap(err, "prune quarantine")
}

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
