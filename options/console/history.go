package console

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/console/internal/sqlcgen"
)

// state is where an event is on its way to the broker.
type state string

const (
	waiting   state = "waiting"
	refused   state = "refused"
	skipped   state = "skipped"
	erasing   state = "being erased"
	published state = "published"
	// handed is published, while another program reads the log: nobody here knows how far it is.
	handed state = "published, or handed to the log"
)

// event is an event of an aggregate.
type event struct {
	ID      uuid.UUID `json:"event_id"`
	Type    string    `json:"event_type"`
	Version int64     `json:"version"`
	Time    time.Time `json:"event_time"`
	TraceID string    `json:"trace_id,omitempty"`
	Caller  string    `json:"caller,omitempty"` // of the command; empty: there is none, or it is unknown
	// Direct is the event that led to this one, and First the first event of the chain. Nil:
	// there is none.
	Direct  *origin   `json:"cause,omitempty"`
	First   *origin   `json:"first,omitempty"`
	State   state     `json:"state"`
	Applied []applied `json:"applied"`
	Message int64     `json:"message,omitempty"` // its number in quarantine; 0: it is not there
}

// origin is an event that led to another one.
type origin struct {
	envelope.Aggregate           // zero: the outbox does not have the event
	EventID            uuid.UUID `json:"event_id"`
	Event              string    `json:"event_type"`
}

// applied says when a consumer applied an event, or reacted to it.
type applied struct {
	Consumer string    `json:"consumer"`
	Time     time.Time `json:"apply_time"`
}

// history has the events of an aggregate.
type history struct {
	Events []event `json:"events"` // the newest first
	// Cut says that there may be older events, which were not read.
	Cut bool `json:"-"` // see Notes
	// Unsure says that not all pending events were read: a waiting event may look published.
	Unsure  bool        `json:"-"`
	Note    string      `json:"-"`                 // of the backlog
	Blocked *pg.Blocked `json:"blocked,omitempty"` // nil: the aggregate is not blocked
	// Messages are the messages in quarantine, also of events that the outbox no longer has.
	Messages []pg.Quarantined `json:"quarantined,omitempty"`
	Title    title            `json:"-"`
	Erasing  bool             `json:"-"` // it was purged, and the outbox may still have its events
	Copies   copies           `json:"-"`
	Sought   time.Time        `json:"-"` // see querySample
}

// Erasure says how much of a purged aggregate is erased; empty: it is not purged.
func (h history) Erasure() string {
	switch {
	case h.Erasing:
		return "It is being erased: its content is purged for good, and events that waited are not published. The maintenance deletes its older events, in up to 90 minutes."
	case h.Title.Erased:
		return "It is erased: its content was purged for good, its older events are deleted, and those that waited were not published."
	}
	return ""
}

// Notes says what may be missing or wrong.
func (h history) Notes() (notes []string) {
	if h.Cut && h.Erasure() == "" {
		notes = append(notes, "Older events were not read: the outbox keeps them for some days, and is read up to a limit.")
	}
	if h.Unsure {
		notes = append(notes, "Many events are pending, and not all were read: one that is shown as published may still be waiting.")
	}
	if h.Note != "" {
		notes = append(notes, "Now "+h.Note+".")
	}
	return notes
}

// history returns the newest events of an aggregate.
func (s *sides) history(ctx context.Context, of envelope.Aggregate) (h history, err error) {
	var pending, skips []uuid.UUID
	err = s.inTx(ctx, "console.history", func(ctx context.Context, q *sqlcgen.Queries) error {
		rows, err := q.ListEvents(ctx, sqlcgen.ListEventsParams{
			FromID: sinceID(of.ID), MaxRead: readEvents, AggregateType: of.Type, AggregateID: of.ID, MaxRows: aggregateEvents,
		})
		if err != nil {
			return err
		}
		h.Cut = len(rows) == 0 || rows[len(rows)-1].Version > 1 // older events were dropped, or are beyond the limit
		if h.Events, err = withOrigins(ctx, q, rows); err != nil {
			return err
		}
		ids := pg.MapSlice(rows, func(row sqlcgen.ListEventsRow) uuid.UUID { return row.ID })
		if skips, err = q.ListSkipped(ctx, ids); err != nil {
			return err
		}
		// Read last: an event that has been published meanwhile is not pending.
		pending, err = q.ListPending(ctx, readPending, of.Type, of.ID)
		return err
	})
	if err != nil {
		return h, pg.Wrap(err, "list the events of %s %s", of.Type, of.ID)
	}
	stuck, err := s.Find(ctx, pg.Filter{Type: of.Type, Aggregate: of.ID}, aggregateEvents)
	if err != nil {
		return h, err
	}
	if h.Messages = stuck.Messages; len(stuck.Blocked) > 0 {
		h.Blocked = &stuck.Blocked[0]
	}
	backlog, err := s.Outbox.Measure(ctx, readPending)
	if err != nil {
		return h, err
	}
	h.Unsure, h.Note = backlog.Pending >= readPending, backlog.Note
	h.Title = s.titlesOf(ctx, []string{of.ID})[of.ID]
	if h.Erasing, err = s.isErasing(ctx, of); err != nil {
		return h, pg.Wrap(err, "read the erasures")
	}
	for i, e := range h.Events {
		h.Events[i].State = stateOf(e.ID, h.Blocked, pending, skips)
		if h.Erasing && i > 0 && h.Events[i].State == published { // the newest event is the purge
			h.Events[i].State = erasing
		}
		if h.Note != "" && h.Events[i].State == published {
			h.Events[i].State = handed
		}
		for _, m := range h.Messages {
			if m.Attributes[envelope.AttrEventID] == e.ID.String() {
				h.Events[i].Message = m.ID
			}
		}
	}
	if h.Copies, err = s.copiesOf(ctx, of); err != nil {
		return h, err
	}
	if h.Sought, err = sqlcgen.New(s.queries).LastSeek(ctx); err != nil {
		return h, pg.Wrap(err, "read the audit")
	}
	return h, s.follow(ctx, h.Events)
}

// copies are the rows of an aggregate: at its owner, and in its projection. A map is nil if this service
// has no such table, and empty if the table has no row.
type copies struct{ owner, projection map[string]any }

// copiesOf reads the projection first, as a comparison does. The table of a projection has a name that
// its aggregate type makes.
func (s *sides) copiesOf(ctx context.Context, of envelope.Aggregate) (c copies, err error) {
	if isID := uuid.Validate(of.ID) == nil; !isID || !slices.Contains(s.types, of.Type) {
		return c, nil
	}
	if c.projection, err = rowOf(ctx, s.queries, "video_catalog_read."+of.Type+"_projection", of.Type+"_id", of.ID); err != nil {
		return c, err
	}
	for table, name := range s.tables {
		if name == of.Type && err == nil {
			c.owner, err = rowOf(ctx, s.commands, "video_catalog."+table, "id", of.ID)
		}
	}
	return c, err
}

// rowOf returns the columns of a row that the user may read.
func rowOf(ctx context.Context, pool *pgxpool.Pool, table, key, id string) (map[string]any, error) {
	columns, err := sqlcgen.New(pool).ListColumns(ctx, table)
	if err != nil || !slices.Contains(columns, key) || !slices.Contains(columns, "version") {
		return nil, pg.Wrap(err, "read the columns of %s", table)
	}
	for i, name := range columns {
		columns[i] = pgx.Identifier{name}.Sanitize()
	}
	rows, _ := pool.Query(ctx, "SELECT "+strings.Join(columns, ", ")+" FROM "+table+" WHERE "+key+" = $1", id) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToMap)
	return append(found, map[string]any{})[0], pg.Wrap(err, "read a row of %s", table)
}

// String says what the projection has; empty: there is none.
func (c copies) String() string {
	if c.projection == nil || len(c.owner)+len(c.projection) == 0 {
		return ""
	}
	has, _ := c.projection["version"].(int64)
	owned, _ := c.owner["version"].(int64)
	text := fmt.Sprintf("The projection has version %d of %d", has, owned)
	switch {
	case c.owner == nil:
		text = fmt.Sprintf("The projection has version %d", has)
	case owned == 0:
		text = fmt.Sprintf("The projection has version %d, and its owner has no such aggregate", has)
	case has == 0:
		text = fmt.Sprintf("The projection lacks it: its owner has version %d", owned)
	case has+1 == owned:
		text += fmt.Sprintf(": it lacks version %d", owned)
	case has < owned:
		text += fmt.Sprintf(": it lacks versions %d to %d", has+1, owned)
	case has == owned:
		var differ []string
		for name, value := range c.projection {
			if other, both := c.owner[name]; both && !reflect.DeepEqual(value, other) {
				differ = append(differ, name)
			}
		}
		if slices.Sort(differ); len(differ) > 0 {
			text += ", and differs from its owner in " + strings.Join(differ, ", ")
		}
	}
	if event, has := c.projection["event_id"]; has && (event == nil || event == [16]byte{}) {
		text += "; a repair wrote it"
		if at, ok := c.projection["updated_at"].(time.Time); ok {
			text += at.UTC().Format(" at 2006-01-02 15:04:05 UTC")
		}
	}
	return text + "."
}

// isErasing reports whether the outbox may still have events of a purged aggregate.
func (s *sides) isErasing(ctx context.Context, of envelope.Aggregate) (is bool, err error) {
	err = optional(ctx, s.commands, "video_catalog.erasures",
		"SELECT EXISTS (SELECT FROM video_catalog.erasures WHERE aggregate_type = $1 AND aggregate_id = $2)", []any{of.Type, of.ID}, &is)
	return is, err
}

// stateOf returns the state of an event. Without a row for another state, it is published.
func stateOf(id uuid.UUID, blocked *pg.Blocked, pending, skips []uuid.UUID) state {
	switch {
	case blocked != nil && blocked.EventID == id && blocked.LastError != "":
		return refused
	case slices.Contains(pending, id):
		return waiting
	case slices.Contains(skips, id):
		return skipped
	}
	return published
}

// withOrigins returns events with their origins. An origin that the outbox lacks has only its id.
func withOrigins(ctx context.Context, q *sqlcgen.Queries, rows []sqlcgen.ListEventsRow) ([]event, error) {
	var ids []uuid.UUID
	for _, row := range rows {
		for _, id := range []*uuid.UUID{row.CausationID, row.CorrelationID} {
			if id != nil {
				ids = append(ids, *id)
			}
		}
	}
	found, err := q.FindEvents(ctx, ids)
	if err != nil {
		return nil, err
	}
	originOf := func(id *uuid.UUID) *origin {
		if id == nil {
			return nil
		}
		c := &origin{EventID: *id}
		if i := slices.IndexFunc(found, func(e sqlcgen.FindEventsRow) bool { return e.ID == *id }); i >= 0 {
			c.Aggregate, c.Event = envelope.Aggregate{Type: found[i].AggregateType, ID: found[i].AggregateID}, found[i].EventType
		}
		return c
	}
	return pg.MapSlice(rows, func(row sqlcgen.ListEventsRow) event {
		return event{
			ID: row.ID, Type: row.EventType, Version: row.Version, Time: row.OccurredAt.UTC(), TraceID: traceIn(row.Traceparent),
			Caller: pg.Unescape(row.Caller), Direct: originOf(row.CausationID), First: originOf(row.CorrelationID),
		}
	}), nil
}

// follow adds to each event when consumers applied it.
func (s *sides) follow(ctx context.Context, events []event) error {
	ids, at := make([]uuid.UUID, len(events)), make(map[uuid.UUID]*event, len(events))
	for i, e := range events {
		ids[i], at[e.ID] = e.ID, &events[i]
	}
	views, err := sqlcgen.New(s.queries).ListApplied(ctx, s.Consumers, ids)
	if err != nil {
		return pg.Wrap(err, "read the inbox")
	}
	for _, row := range views {
		at[row.EventID].Applied = append(at[row.EventID].Applied, applied{row.Consumer, row.ReceivedAt.UTC()})
	}
	return pg.Wrap(s.followReactions(ctx, ids, at), "read the inbox of the command side")
}

// followReactions adds when the command side reacted. sqlc does not know the inbox of this side,
// because it belongs to another option.
func (s *sides) followReactions(ctx context.Context, ids []uuid.UUID, at map[uuid.UUID]*event) error {
	has, err := sqlcgen.New(s.commands).HasTable(ctx, "video_catalog.inbox")
	if err != nil || !has {
		return err
	}
	rows, _ := s.commands.Query(ctx, `SELECT consumer, event_id, received_at FROM video_catalog.inbox
		WHERE consumer = ANY ($1) AND event_id = ANY ($2) ORDER BY received_at`, s.Consumers, ids) // ForEachRow returns its error
	var consumer string
	var id uuid.UUID
	var received time.Time
	_, err = pgx.ForEachRow(rows, []any{&consumer, &id, &received}, func() error {
		at[id].Applied = append(at[id].Applied, applied{consumer, received.UTC()})
		return nil
	})
	return err
}
