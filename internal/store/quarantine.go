package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// QuarantinedRow is a message in the quarantine.
type QuarantinedRow struct {
	ID int64 // grows with every message
	event.Quarantined
	ReceivedAt time.Time // when it was set aside
}

// Quarantine sets a message aside for a consumer, once: that it is there
// already is no error. Whatever the message contains can be stored, because one
// that cannot even be quarantined would block its ordering key for ever.
func (c *Catalog) Quarantine(ctx context.Context, consumer string, m event.Quarantined) error {
	attributes := make(map[string]string, len(m.Attributes))
	for name, value := range m.Attributes {
		attributes[escape(name)] = escape(value)
	}
	encoded, err := json.Marshal(attributes)
	if err != nil {
		return fmt.Errorf("quarantine message %s: %w", m.MessageID, err)
	}
	err = c.queries.InsertQuarantine(ctx, sqlcgen.InsertQuarantineParams{
		Consumer: consumer, MessageID: escape(m.MessageID), OrderingKey: escape(m.OrderingKey), Attributes: encoded,
		Payload: notNil(m.Payload), Reason: escape(m.Reason), PublishTime: m.PublishTime,
	})
	return wrap(err, "quarantine message %s", m.MessageID)
}

// ListQuarantine answers the messages of a consumer that were set aside after
// the one with id after (0: from the first one on), at most maxRows, as they
// were received.
func (c *Catalog) ListQuarantine(ctx context.Context, consumer string, after int64, maxRows int) ([]QuarantinedRow, error) {
	rows, err := c.queries.ListQuarantine(ctx, consumer, after, limit(maxRows))
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
			Quarantined: event.Quarantined{
				MessageID: unescape(row.MessageID), OrderingKey: unescape(row.OrderingKey), Attributes: make(map[string]string, len(attributes)),
				Payload: row.Payload, Reason: unescape(row.Reason), PublishTime: row.PublishTime.UTC(),
			},
			ReceivedAt: row.ReceivedAt.UTC(),
		}
		for name, value := range attributes {
			messages[i].Attributes[unescape(name)] = unescape(value)
		}
	}
	return messages, nil
}

// DeleteQuarantine deletes a message for good; domain.NotFound when it is not
// there.
func (c *Catalog) DeleteQuarantine(ctx context.Context, id int64) error {
	n, err := c.queries.DeleteQuarantine(ctx, id)
	if err != nil {
		return wrap(err, "delete quarantined message %d", id)
	}
	if n == 0 {
		return domain.Errorf(domain.NotFound, "quarantined message %d does not exist", id)
	}
	return nil
}

// escape writes text in characters that PostgreSQL can store: it takes neither
// a NUL nor broken UTF-8. Text that has one, or a backslash, is written as in a
// Go string; all other text stays as it is, and unescape has it all back.
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
