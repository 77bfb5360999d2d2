package console

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/console/internal/sqlcgen"
)

const (
	countLimit      = 10_000  // largest count in a sample; applied events: per consumer
	newestEvents    = 10      // events that the overview shows
	aggregateEvents = 200     // events that the page of an aggregate shows
	readEvents      = 200_000 // newest events of the outbox that are read to find the events of an aggregate
	readPending     = 5_000   // pending events that are read per lane
	readTitles      = 20_000  // newest rows per table that are searched
	foundTitles     = 25      // titles that a search shows
	// rateWindow is the period in which events are counted. It ends settleTime ago, because a
	// command makes its event before it commits.
	rateWindow = 10 * time.Second
	settleTime = time.Second
)

// sides reads both sides of the service. Consumers has the names in both inboxes.
type sides struct {
	operate.Sides

	commands, queries *pgxpool.Pool
	types             []string            // of aggregates
	tables            map[string]string   // the aggregate types, by their tables
	projections       map[string][]string // consumers of the query side, by aggregate type
	retention         time.Duration       // of the inbox
}

// inTx runs queries in one transaction on the command side.
func (s *sides) inTx(ctx context.Context, name string, fn func(context.Context, *sqlcgen.Queries) error) error {
	return pg.InTx(ctx, s.commands, name, func(ctx context.Context, tx *pg.Tx) error {
		pg.UseOutboxSettings(ctx, tx)
		return fn(ctx, sqlcgen.New(tx))
	})
}

// commandSample is a measurement of the command side.
type commandSample struct {
	pg.Backlog // counted up to countLimit

	Waits         time.Duration // age of the oldest pending event, also of a blocked aggregate; 0: there is none
	Rate          float64       // events a second
	Late, Failing int64         // timers that are due for longer than patience, and that have failed; counted up to countLimit
	Replaced      bool          // the database was replaced, and the new one is not known
	Newest        []write       // the newest first
	// Published is the newest published event that is older than patience, of a type that a
	// projection has. There may be none.
	Published []sqlcgen.FindPublishedRow
}

// write is an event of the outbox.
type write struct {
	envelope.Aggregate
	ID      uuid.UUID
	Event   string
	Version int64
	Time    time.Time
	Title   string    // of the aggregate; may be empty
	Applied time.Time // zero: not known to be applied
	Skipped bool      // a person gave it up
	Before  bool      // it is older than the last seek, which has emptied the inbox
}

func (s *sides) sampleCommands(ctx context.Context) (c commandSample, err error) {
	if c.Backlog, err = s.Outbox.Measure(ctx, countLimit); err != nil {
		return c, err
	}
	err = s.inTx(ctx, "console.sampleCommands", func(ctx context.Context, q *sqlcgen.Queries) error {
		deferred, err := q.OldestDeferred(ctx, countLimit)
		if err != nil {
			return err
		}
		c.Waits = secondsOf(max(c.Age, deferred))
		old := uuidFloor(c.At.Add(-patience - secondsOf(c.Age)))
		if c.Published, err = q.FindPublished(ctx, old, countLimit, slices.Collect(maps.Keys(s.projections))); err != nil {
			return err
		}
		until := c.At.Add(-settleTime)
		n, err := q.CountEvents(ctx, uuidFloor(until.Add(-rateWindow)), uuidFloor(until), 10*countLimit)
		if err != nil {
			return err
		}
		c.Rate = float64(n) / rateWindow.Seconds()
		newest, err := q.ListNewest(ctx, newestEvents)
		for _, e := range newest {
			c.Newest = append(c.Newest, write{
				Aggregate: envelope.Aggregate{Type: e.AggregateType, ID: e.AggregateID}, ID: e.ID, Event: e.EventType, Version: e.Version, Time: e.OccurredAt.UTC(),
			})
		}
		return err
	})
	if err == nil {
		err = optional(ctx, s.commands, "video_catalog.timers", `SELECT
			(SELECT count(*) FROM (SELECT FROM video_catalog.timers
				WHERE aggregate_type = ANY ($1) AND due_at < now() - $2::interval LIMIT $3) late),
			(SELECT count(*) FROM (SELECT FROM video_catalog.timers
				WHERE aggregate_type = ANY ($1) AND due_at < now() + interval '1 hour' AND attempts > 0 LIMIT $3) failing)`,
			[]any{s.types, patience, countLimit}, &c.Late, &c.Failing)
	}
	if err == nil {
		err = isReplaced(ctx, s.commands, "video_catalog", &c.Replaced)
	}
	return c, pg.Wrap(err, "sample the command side")
}

// optional scans the row of a query on a table, if the service has the table. sqlc does not know the
// table, because it belongs to another option or to the example.
func optional(ctx context.Context, pool *pgxpool.Pool, table, sql string, args []any, into ...any) error {
	has, err := sqlcgen.New(pool).HasTable(ctx, table)
	if err == nil && has {
		err = pool.QueryRow(ctx, sql, args...).Scan(into...)
	}
	return err
}

// isReplaced reports whether the database of a side is not the one that the option repair knows. A
// standby has no identity of its own, and counts as known.
func isReplaced(ctx context.Context, pool *pgxpool.Pool, schema string, is *bool) error {
	return optional(ctx, pool, schema+".known_database", strings.ReplaceAll(
		"SELECT identity <> CASE WHEN pg_is_in_recovery() THEN identity ELSE SCHEMA.database_identity() END FROM SCHEMA.known_database", "SCHEMA", schema), nil, is)
}

// querySample is a measurement of the query side.
type querySample struct {
	Quarantined int64         // counted up to countLimit
	Comparisons []comparison  // of projections with their owners, by the option repair
	Replaced    bool          // see commandSample
	Applied     int64         // events applied in the last five minutes, among the newest countLimit of each consumer
	P50, P99    time.Duration // time from an event until it was applied, of these
	Last        time.Time     // when an event was last applied; zero: never
	Sought      time.Time     // when an inbox was last emptied, to have events delivered again
}

func (s *sides) sampleQueries(ctx context.Context) (querySample, error) {
	q := sqlcgen.New(s.queries)
	quarantined, err := q.CountQuarantine(ctx, countLimit)
	if err != nil {
		return querySample{}, pg.Wrap(err, "sample the query side")
	}
	row, err := q.SampleInbox(ctx, s.Consumers, countLimit)
	sample := querySample{Quarantined: quarantined, Applied: row.Applied, P50: secondsOf(row.P50), P99: secondsOf(row.P99)}
	if row.AppliedAt.Unix() != 0 { // the query returns the epoch for never
		sample.Last = row.AppliedAt.UTC()
	}
	if err == nil {
		sample.Sought, err = q.LastSeek(ctx)
	}
	if err == nil {
		sample.Comparisons, err = s.comparisons(ctx)
	}
	if err == nil {
		err = isReplaced(ctx, s.queries, "video_catalog_read", &sample.Replaced)
	}
	return sample, pg.Wrap(err, "sample the query side")
}

// behind returns a consumer of the query side that has neither applied a published event nor put it
// into quarantine; empty if there is none.
func (s *sides) behind(ctx context.Context, published []sqlcgen.FindPublishedRow, sought time.Time) (string, error) {
	for _, e := range published {
		if e.OccurredAt.Before(sought) || time.Since(e.OccurredAt) > s.retention { // the inbox may have forgotten it
			return "", nil
		}
		applied, err := sqlcgen.New(s.queries).ListApplied(ctx, s.Consumers, []uuid.UUID{e.ID})
		if err != nil {
			return "", err
		}
		for _, consumer := range s.projections[e.AggregateType] {
			if slices.ContainsFunc(applied, func(row sqlcgen.VideoCatalogReadInbox) bool { return row.Consumer == consumer }) {
				continue
			}
			// A subscription has no event from before its creation.
			had, err := sqlcgen.New(s.queries).HadApplied(ctx, consumer, e.ID, e.OccurredAt)
			if err != nil {
				return "", err
			}
			if !had {
				continue
			}
			messages, _, err := s.Inbox.ListQuarantine(ctx, pg.Filter{ID: e.ID.String()}, stuckRows)
			if err != nil {
				return "", err
			}
			if !slices.ContainsFunc(messages, func(m pg.Quarantined) bool { return m.Consumer == consumer }) {
				return consumer, nil
			}
		}
	}
	return "", nil
}

// comparison is what the last comparison of a projection with its owner has found.
type comparison struct {
	Type        string
	Time        *time.Time // when it ended; nil: none has ended
	Rows        int64      // that it has compared
	Differences int64      // that it has found, or the one that runs if these are more
}

func (s *sides) comparisons(ctx context.Context) (all []comparison, err error) {
	err = optional(ctx, s.queries, "video_catalog_read.comparisons", `SELECT coalesce(jsonb_agg(jsonb_build_object('Type', aggregate_type, 'Time', last_time,
		'Rows', last_compared, 'Differences', greatest(last_differences, differences)) ORDER BY aggregate_type), '[]') FROM video_catalog_read.comparisons`, nil, &all)
	return all, err
}

// rights are what the database users may do.
type rights struct {
	User              string
	Commands, Queries bool      // may act on that side
	At                time.Time // when they were read, by the clock of the command side
	Err               error     // why it is not known
}

// readRights reads the rights from the database, because they may change while the console runs.
func (s *sides) readRights(ctx context.Context) (r rights) {
	commands, err := sqlcgen.New(s.commands).GetCommandPrivileges(ctx)
	if err != nil {
		return rights{Err: pg.Wrap(err, "read privileges")}
	}
	queries, err := sqlcgen.New(s.queries).GetQueryPrivileges(ctx)
	if err != nil {
		return rights{Err: pg.Wrap(err, "read privileges")}
	}
	r = rights{User: commands.Name, Commands: commands.Writes, Queries: queries.Writes, At: commands.At.UTC()}
	if queries.Name != r.User {
		r.User += " and " + queries.Name
	}
	return r
}

// state is where an event is on its way to the broker.
type state string

const (
	waiting   state = "waiting"
	refused   state = "refused"
	skipped   state = "skipped"
	erasing   state = "being erased"
	published state = "published"
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
		ids := make([]uuid.UUID, len(rows))
		for i, row := range rows {
			ids[i] = row.ID
		}
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
	h.Unsure = backlog.Pending >= readPending
	h.Title = s.titlesOf(ctx, []string{of.ID})[of.ID]
	if h.Erasing, err = s.isErasing(ctx, of); err != nil {
		return h, pg.Wrap(err, "read the erasures")
	}
	for i, e := range h.Events {
		h.Events[i].State = stateOf(e.ID, h.Blocked, pending, skips)
		if h.Erasing && i > 0 && h.Events[i].State == published { // the newest event is the purge
			h.Events[i].State = erasing
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
	events := make([]event, len(rows))
	for i, row := range rows {
		events[i] = event{
			ID: row.ID, Type: row.EventType, Version: row.Version, Time: row.OccurredAt.UTC(), TraceID: traceIn(row.Traceparent),
			Caller: pg.Unescape(row.Caller), Direct: originOf(row.CausationID), First: originOf(row.CorrelationID),
		}
	}
	return events, nil
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

// title is the title of an aggregate.
type title struct {
	envelope.Aggregate
	Title  string `json:"title"`
	Erased bool   `json:"erased,omitempty"` // its content was erased for good
}

// titles runs a query on every table of aggregates. In the query, TYPE stands for the aggregate type, TABLE for
// the name of the table, and TITLE and ERASED for expressions.
func (s *sides) titles(ctx context.Context, query string, args ...any) ([]title, error) {
	tables, err := sqlcgen.New(s.commands).ListTables(ctx, slices.Collect(maps.Keys(s.tables)))
	if err != nil || len(tables) == 0 {
		return nil, pg.Wrap(err, "find titles")
	}
	var parts []string
	for _, t := range tables {
		table := pgx.Identifier{"video_catalog", t.Name}.Sanitize()
		parts = append(parts, "("+strings.NewReplacer("TYPE", "'"+s.tables[t.Name]+"'", "TABLE", table, "TITLE", t.Title, "ERASED", t.Erased).Replace(query)+")")
	}
	rows, err := s.commands.Query(ctx, strings.Join(parts, " UNION ALL "), args...)
	if err != nil {
		return nil, pg.Wrap(err, "find titles")
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[title])
	return all, pg.Wrap(err, "find titles")
}

// cutSearch says what a search may have missed.
var cutSearch = fmt.Sprintf("There may be more: a search reads the newest %d rows of a table, and shows %d titles.", readTitles, foundTitles)

// findTitles returns the newest foundTitles aggregates whose title contains a text, among the newest
// readTitles per table. If it has reached a limit, cut says so.
func (s *sides) findTitles(ctx context.Context, text string) (found []title, cut string, err error) {
	found, err = s.titles(ctx, fmt.Sprintf(`SELECT TYPE, id::text, title, false FROM (SELECT id, TITLE AS title FROM TABLE ORDER BY id DESC LIMIT %d) newest
		WHERE strpos(lower(title), lower($1)) > 0 ORDER BY id DESC LIMIT %d`, readTitles, foundTitles+1), text)
	if err != nil {
		return nil, "", err
	}
	slices.SortFunc(found, func(a, b title) int { return strings.Compare(b.ID, a.ID) })
	unread, err := s.titles(ctx, fmt.Sprintf("SELECT '', '', '', false FROM TABLE OFFSET %d LIMIT 1", readTitles))
	if len(found) > foundTitles || len(unread) > 0 {
		cut = cutSearch
	}
	return found[:min(len(found), foundTitles)], cut, err
}

const titlesByID = "SELECT TYPE, id::text, TITLE, ERASED FROM TABLE WHERE id = ANY ($1::uuid[])"

// titlesOf returns the titles of aggregates, by id. It leaves out what it cannot find.
func (s *sides) titlesOf(ctx context.Context, ids []string) map[string]title {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return uuid.Validate(id) != nil })
	all, err := s.titles(ctx, titlesByID, ids)
	titles := make(map[string]title, len(all))
	if err != nil {
		return titles // the ids are shown all the same
	}
	for _, f := range all {
		titles[f.ID] = f
	}
	return titles
}

// sinceID returns a lower bound of the event ids of an aggregate: its own id is a UUIDv7, made
// before its first event, but maybe by another clock.
func sinceID(id string) uuid.UUID {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 7 {
		return uuid.Nil
	}
	const slack = time.Minute
	return uuidFloor(time.Unix(parsed.Time().UnixTime()).Add(-slack))
}

// uuidFloor returns the smallest UUIDv7 of a time, like uuid7_floor in the database, which people
// may not call.
func uuidFloor(t time.Time) (id uuid.UUID) {
	milliseconds := max(0, t.UnixMilli())
	for i := range 6 {
		id[i] = byte(milliseconds >> (40 - 8*i)) //nolint:gosec // the lowest eight bits
	}
	return id
}

func secondsOf(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
