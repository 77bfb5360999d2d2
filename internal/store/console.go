package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/options/console"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

const (
	newestEvents    = 10      // that the overview shows
	aggregateEvents = 200     // that the page of an aggregate shows
	readEvents      = 200_000 // that are read to find them
	readPending     = 5_000   // pending events that are read per lane
	// settleTime is how long a command may take from its event to its commit. Events are
	// counted that much later.
	settleTime = time.Second
)

// SampleCommands measures the command side for the console: see console.Commands.
func (o *Outbox) SampleCommands(ctx context.Context, since time.Time) (s console.CommandSample, err error) {
	var rows []sqlcgen.SampleLanesRow
	var blocked sqlcgen.SampleBlockedRow
	var newest []sqlcgen.ListNewestOutboxRow
	err = inTx(ctx, o.pool, "store.SampleCommands", func(ctx context.Context, q *sqlcgen.Queries) (err error) {
		if err = q.UseOutboxIndexes(ctx); err != nil {
			return err
		}
		if rows, err = q.SampleLanes(ctx, console.CountLimit); err != nil || len(rows) == 0 {
			return err
		}
		if blocked, err = q.SampleBlocked(ctx, console.CountLimit); err != nil {
			return err
		}
		s.Time = rows[0].At.UTC()
		s.Until = s.Time.Add(-settleTime)
		if !since.IsZero() && since.Before(s.Until) {
			s.Over = s.Until.Sub(since)
			if s.Appended, err = q.CountOutbox(ctx, uuidFloor(since), uuidFloor(s.Until), 5*console.CountLimit); err != nil {
				return err
			}
		}
		newest, err = q.ListNewestOutbox(ctx, newestEvents)
		return err
	})
	if err != nil {
		return s, wrap(err, "sample the outbox")
	}
	s.Blocked, s.Parked = blocked.Blocked, blocked.Parked
	for _, row := range rows {
		lane := console.Lane{
			Number: int(row.Lane), Era: row.Era, Token: row.LeaseToken, Settlements: row.Settlements,
			LeaseLeft: secondsOf(row.LeaseLeft), Oldest: secondsOf(row.OldestAge), Pending: row.Pending,
		}
		if lane.Number < 0 {
			s.Aside = lane
			continue
		}
		s.Lanes = append(s.Lanes, lane)
	}
	s.Newest = mapSlice(newest, func(row sqlcgen.ListNewestOutboxRow) console.Write {
		return console.Write{
			Aggregate: envelope.Aggregate{Type: row.AggregateType, ID: row.AggregateID}, EventID: row.ID, Event: row.EventType,
			Version: row.Version, Time: row.OccurredAt.UTC(), TraceID: envelope.TraceID(row.Traceparent),
		}
	})
	return s, nil
}

// Events returns the events of an aggregate for the console: see console.Commands.
func (o *Outbox) Events(ctx context.Context, aggregate envelope.Aggregate, from, until time.Time) (h console.History, err error) {
	var rows []sqlcgen.ListAggregateEventsRow
	var pending []sqlcgen.ListAggregatePendingRow
	var causes map[uuid.UUID]console.Cause
	var read int64
	first, last := uuidFloor(from), uuidFloor(until)
	err = inTx(ctx, o.pool, "store.Events", func(ctx context.Context, q *sqlcgen.Queries) (err error) {
		if err = q.UseOutboxIndexes(ctx); err != nil {
			return err
		}
		rows, err = q.ListAggregateEvents(ctx, sqlcgen.ListAggregateEventsParams{
			AggregateType: aggregate.Type, AggregateID: aggregate.ID, FromID: first, UntilID: last, MaxRead: readEvents, MaxRows: aggregateEvents,
		})
		if err != nil {
			return err
		}
		// Above version 1 there are older events: they were dropped, or are beyond the limit.
		if h.Cut = len(rows) == 0 || rows[len(rows)-1].Version > 1; h.Cut && len(rows) == 0 {
			read, err = q.CountOutbox(ctx, first, last, readEvents)
			h.Cut = read == readEvents
		}
		if err != nil {
			return err
		}
		if len(rows) > 0 && rows[len(rows)-1].Version == 1 {
			if h.RequestID, err = requestOf(ctx, q, aggregate, rows[len(rows)-1].OccurredAt); err != nil {
				return err
			}
		}
		if causes, err = causesOf(ctx, q, rows); err != nil {
			return err
		}
		// Read last: an event that has been published meanwhile is not pending.
		pending, err = q.ListAggregatePending(ctx, readPending, aggregate.Type, aggregate.ID)
		return err
	})
	if err != nil {
		return h, wrap(err, "list the events of %s %s", aggregate.Type, aggregate.ID)
	}
	lanes := make(map[uuid.UUID]int16, len(pending))
	for _, row := range pending {
		lanes[row.ID] = row.Lane
	}
	h.Events = mapSlice(rows, func(row sqlcgen.ListAggregateEventsRow) console.Event {
		e := console.Event{
			ID: row.ID, Type: row.EventType, Version: row.Version, Schema: row.SchemaVersion, Time: row.OccurredAt.UTC(),
			TraceID: envelope.TraceID(row.Traceparent), Caller: unescape(row.Caller), State: console.Published,
			Cause: causeIn(causes, row.CausationID), First: causeIn(causes, row.CorrelationID),
		}
		if lane, ok := lanes[row.ID]; ok {
			e.State = console.Pending
			if lane < 0 {
				e.State = console.SetAside
			}
		}
		return e
	})
	return h, o.addBlocked(ctx, aggregate, &h)
}

// causesOf returns the events that led to some events, as far as the outbox has them, by id.
func causesOf(ctx context.Context, q *sqlcgen.Queries, events []sqlcgen.ListAggregateEventsRow) (map[uuid.UUID]console.Cause, error) {
	var ids []uuid.UUID
	for _, e := range events {
		if e.CausationID != nil {
			ids = append(ids, *e.CausationID, valueOf(e.CorrelationID))
		}
	}
	found, err := q.FindEvents(ctx, ids)
	if err != nil {
		return nil, err
	}
	causes := make(map[uuid.UUID]console.Cause, len(found))
	for _, e := range found {
		causes[e.ID] = console.Cause{Aggregate: envelope.Aggregate{Type: e.AggregateType, ID: e.AggregateID}, EventID: e.ID, Event: e.EventType}
	}
	return causes, nil
}

// causeIn returns the event of an id; nil without an id. Of an event that is not among the
// causes, only the id is known.
func causeIn(causes map[uuid.UUID]console.Cause, id *uuid.UUID) *console.Cause {
	if id == nil {
		return nil
	}
	cause := causes[*id]
	cause.EventID = *id
	return &cause
}

// requestOf returns the id of the request that made an aggregate about that time; uuid.Nil if it
// is not known.
func requestOf(ctx context.Context, q *sqlcgen.Queries, aggregate envelope.Aggregate, made time.Time) (uuid.UUID, error) {
	const slack = time.Minute // the two times are by two clocks
	ids, err := q.FindRequests(ctx, sqlcgen.FindRequestsParams{
		FromTime: made.Add(-slack), UntilTime: made.Add(slack), AggregateType: aggregate.Type, AggregateID: aggregate.ID,
	})
	if err != nil || len(ids) == 0 {
		return uuid.Nil, err
	}
	return ids[0], nil
}

// addBlocked adds whether an aggregate is blocked, and whether its pending events may be
// beyond those that were read.
func (o *Outbox) addBlocked(ctx context.Context, aggregate envelope.Aggregate, h *console.History) error {
	backlog, err := o.Measure(ctx, readPending)
	if err != nil {
		return err
	}
	h.Unsure = backlog.Pending >= readPending
	row, err := o.queries.GetBlocked(ctx, aggregate.Type, aggregate.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return wrap(err, "get what blocks %s %s", aggregate.Type, aggregate.ID)
	}
	h.Blocked = &console.Blocked{
		Attempts: int(row.Attempts), Cause: unescape(row.LastError), NextRetry: timeOf(row.NextRetryAt), ParkedAt: timeOf(row.ParkedAt),
	}
	return nil
}

// CommandPrivileges returns what the user of the pool may do: see console.Commands.
func (o *Outbox) CommandPrivileges(ctx context.Context) (console.Privileges, error) {
	row, err := o.queries.GetCommandPrivileges(ctx)
	return console.Privileges{User: row.Name, Writes: row.Writes, ReadsPayloads: row.ReadsPayloads}, wrap(err, "read privileges")
}

// ServerVersion returns the version of PostgreSQL.
func (o *Outbox) ServerVersion(ctx context.Context) (string, error) {
	text, err := o.queries.GetServerVersion(ctx)
	return text, wrap(err, "read the version of PostgreSQL")
}

// Tables describes the tables of the outbox. Sizes are in bytes, on disk.
type Tables struct {
	DaysAhead       int // future days that have their partition
	Outbox, Pending int64
}

// Tables measures the tables of the outbox.
func (o *Outbox) Tables(ctx context.Context) (Tables, error) {
	t, err := o.measureTables(ctx)
	return Tables{DaysAhead: int(t.daysAhead), Outbox: t.outbox, Pending: t.pending}, err
}

// SampleQueries measures the query side for the console: see console.Queries.
func (b *Inbox) SampleQueries(ctx context.Context, consumers []string) (console.QuerySample, error) {
	row, err := b.queries.MeasureQuarantine(ctx, consumers, console.CountLimit)
	return console.QuerySample{Quarantined: row.Quarantined, QuarantineBytes: row.QuarantineBytes}, wrap(err, "measure quarantine")
}

// Applied adds when events were applied: see console.Queries.
func (b *Inbox) Applied(ctx context.Context, consumers []string, events []console.Event) error {
	ids := mapSlice(events, func(e console.Event) uuid.UUID { return e.ID })
	rows, err := b.queries.ListInboxTimes(ctx, consumers, ids)
	if err != nil {
		return wrap(err, "read the inbox")
	}
	for _, row := range rows {
		setApplied(events, row.EventID, console.Applied{Consumer: row.Consumer, Time: row.ReceivedAt.UTC()})
	}
	return nil
}

// Reacted adds when the command side reacted to events: see console.Commands.
func (o *Outbox) Reacted(ctx context.Context, consumers []string, events []console.Event) error {
	ids := mapSlice(events, func(e console.Event) uuid.UUID { return e.ID })
	rows, err := o.queries.ListReactions(ctx, consumers, ids)
	if err != nil {
		return wrap(err, "read the inbox of the command side")
	}
	for _, row := range rows {
		setApplied(events, row.EventID, console.Applied{Consumer: row.Consumer, Time: row.ReceivedAt.UTC()})
	}
	return nil
}

func setApplied(events []console.Event, id uuid.UUID, applied console.Applied) {
	for i := range events {
		if events[i].ID == id {
			events[i].Applied = append(events[i].Applied, applied)
		}
	}
}

// Quarantined returns a message in quarantine: see console.Queries.
func (b *Inbox) Quarantined(ctx context.Context, id int64) (console.Message, error) {
	row, err := b.queries.GetQuarantined(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return console.Message{}, problem.Errorf(problem.NotFound, "there is no message %d in quarantine: somebody may have replayed or deleted it", id)
	}
	if err != nil {
		return console.Message{}, wrap(err, "get quarantined message %d", id)
	}
	m := console.Message{
		ID: row.ID, Consumer: row.Consumer, MessageID: unescape(row.MessageID), Key: unescape(row.OrderingKey), Cause: unescape(row.Reason),
		Attributes: make(map[string]string), PublishTime: row.PublishTime.UTC(), ReceivedAt: row.ReceivedAt.UTC(),
		Size: row.PayloadSize, SHA256: row.PayloadSha256,
	}
	var attributes map[string]string
	if err := json.Unmarshal(row.Attributes, &attributes); err != nil {
		return m, fmt.Errorf("read attributes of quarantined message %d: %w", id, err)
	}
	for name, value := range attributes {
		m.Attributes[unescape(name)] = unescape(value)
	}
	mine, err := b.QueryPrivileges(ctx)
	if err != nil {
		return m, err
	}
	if m.Hidden = !mine.ReadsPayloads; m.Hidden || m.SHA256 != "" {
		return m, nil
	}
	m.Payload, err = b.QuarantinedPayload(ctx, id)
	return m, err
}

// QueryPrivileges returns what the user of the pool may do: see console.Queries.
func (b *Inbox) QueryPrivileges(ctx context.Context) (console.Privileges, error) {
	row, err := b.queries.GetQueryPrivileges(ctx)
	return console.Privileges{User: row.Name, Writes: row.Writes, ReadsPayloads: row.ReadsPayloads}, wrap(err, "read privileges")
}

// CompareStates returns what compares the states of an aggregate on both sides, by the fields
// of T: see console.Type. source is nil if the owner is another service. A view need not show
// what is deleted.
func CompareStates[T any](source, view func(context.Context, uuid.UUID) (T, error)) func(context.Context, string) (console.Comparison, error) {
	return func(ctx context.Context, text string) (c console.Comparison, err error) {
		id, err := uuid.Parse(text)
		if err != nil {
			return c, problem.InvalidField("id", "must be a UUID")
		}
		// The view is read first: the source is at least as new.
		if c.Projection, err = fieldsOfState(ctx, id, view); err != nil {
			return c, err
		}
		c.ProjectionVersion = versionOf(c.Projection)
		if source == nil {
			c.Alone = "the source is in another service"
			return c, nil
		}
		if c.Source, err = fieldsOfState(ctx, id, source); err != nil || c.Source == nil {
			return c, err
		}
		c.SourceVersion = versionOf(c.Source)
		c.Created, c.Updated = timeIn(c.Source, "CreateTime"), timeIn(c.Source, "UpdateTime")
		if c.Projection == nil && !timeIn(c.Source, "DeleteTime").IsZero() {
			c.Alone = "deleted, so the view does not show it"
		}
		return c, nil
	}
}

// fieldsOfState reads a state, and returns its fields as JSON has them, without times that are
// zero; nil if it does not exist.
func fieldsOfState[T any](ctx context.Context, id uuid.UUID, get func(context.Context, uuid.UUID) (T, error)) (map[string]any, error) {
	state, err := get(ctx, id)
	if known, ok := errors.AsType[*problem.Error](err); ok && known.Kind == problem.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("show state: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	fields := make(map[string]any)
	if err := decoder.Decode(&fields); err != nil {
		return nil, fmt.Errorf("show state: %w", err)
	}
	maps.DeleteFunc(fields, func(_ string, value any) bool { return value == "0001-01-01T00:00:00Z" })
	return fields, nil
}

func versionOf(fields map[string]any) int64 {
	number, _ := fields["Version"].(json.Number)
	version, _ := number.Int64() // 0 without fields
	return version
}

func timeIn(fields map[string]any, name string) time.Time {
	text, _ := fields[name].(string)
	at, _ := time.Parse(time.RFC3339Nano, text) // zero without the field
	return at
}

// uuidFloor returns the smallest UUIDv7 of a time, like uuid7_floor in the database, which
// people may not call.
func uuidFloor(t time.Time) (id uuid.UUID) {
	milliseconds := max(0, t.UnixMilli())
	for i := range 6 {
		id[i] = byte(milliseconds >> (40 - 8*i)) //nolint:gosec // the lowest eight bits
	}
	return id
}

func secondsOf(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
