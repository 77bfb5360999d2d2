package console

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
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
		c.Newest = pg.MapSlice(newest, func(e sqlcgen.ListNewestRow) write {
			return write{Aggregate: envelope.Aggregate{Type: e.AggregateType, ID: e.AggregateID}, ID: e.ID, Event: e.EventType, Version: e.Version, Time: e.OccurredAt.UTC()}
		})
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
	queries, queriesErr := sqlcgen.New(s.queries).GetQueryPrivileges(ctx)
	if err = cmp.Or(err, queriesErr); err != nil {
		return rights{Err: pg.Wrap(err, "read privileges")}
	}
	r = rights{User: commands.Name, Commands: commands.Writes, Queries: queries.Writes, At: commands.At.UTC()}
	if queries.Name != r.User {
		r.User += " and " + queries.Name
	}
	return r
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
	rows, _ := s.commands.Query(ctx, strings.Join(parts, " UNION ALL "), args...) // CollectRows returns its error
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
	return uuidFloor(time.Unix(parsed.Time().UnixTime()).Add(-time.Minute))
}

// uuidFloor returns the smallest UUIDv7 of a time, like uuid7_floor in the database, which people
// may not call.
func uuidFloor(t time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(max(0, t.UnixMilli()))<<16)
	return id
}

func secondsOf(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
