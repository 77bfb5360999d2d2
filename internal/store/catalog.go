package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/search"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Catalog stores the query side: the projection, guarded by the inbox. It is
// safe for concurrent use.
type Catalog struct {
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
	inbox   *Inbox
	changes *changes
}

// NewCatalog returns the query side of a pool.
func NewCatalog(pool *pgxpool.Pool) *Catalog {
	return &Catalog{pool: pool, queries: queriesOver(pool), inbox: NewInbox(pool), changes: &changes{next: make(chan struct{})}}
}

// Over returns the same catalog on another pool. A change through either of
// them closes the channels of both.
func (c *Catalog) Over(pool *pgxpool.Pool) *Catalog {
	return &Catalog{pool: pool, queries: queriesOver(pool), inbox: NewInbox(pool), changes: c.changes}
}

// Changed returns a channel that is closed at the next change of the catalog by
// this process. Other processes also change the catalog, so callers must poll
// too.
func (c *Catalog) Changed() <-chan struct{} { return c.changes.wait() }

// changes announces changes of the catalog within this process.
type changes struct {
	mu   sync.Mutex
	next chan struct{} // guarded by mu; closed and replaced at every change
}

func (c *changes) wait() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

func (c *changes) announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.next)
	c.next = make(chan struct{})
}

// Project applies events for a consumer in one transaction, and returns the
// outcome of each. An event that the consumer has already received is a
// Duplicate. The others change a row only if they are newer. An event that
// purges a video also deletes its messages in quarantine. On an error no event
// takes effect.
func (c *Catalog) Project(ctx context.Context, consumerName string, events []domain.Event) ([]envelope.Outcome, error) {
	changed := false
	ids := mapSlice(events, func(e domain.Event) uuid.UUID { return e.ID })
	outcomes, err := c.inbox.apply(ctx, consumerName, ids, func(ctx context.Context, q *sqlcgen.Queries, fresh []int) ([]envelope.Outcome, error) {
		entries, err := lockEntries(ctx, q, mapSlice(fresh, func(i int) uuid.UUID { return events[i].Video.ID }))
		if err != nil {
			return nil, err
		}
		news := make(map[uuid.UUID]domain.Entry)
		folded := mapSlice(fresh, func(i int) envelope.Outcome {
			e := events[i]
			entry, outcome := domain.Fold(entries[e.Video.ID], e)
			if entry.EventID == e.ID && outcome != domain.Stale {
				entries[e.Video.ID], news[e.Video.ID] = entry, entry
			}
			return outcomeOf[outcome]
		})
		changed = len(news) > 0
		if err := upsert(ctx, q, news); err != nil {
			return nil, err
		}
		return folded, eraseQuarantined(ctx, q, events)
	})
	if changed && err == nil {
		c.changes.announce()
	}
	return outcomes, err
}

// eraseQuarantined deletes the quarantined messages of videos that are purged by the events. It
// does so also if an event is stale, because a repair may have been faster, or a duplicate,
// because an older message may have been delivered again, too.
func eraseQuarantined(ctx context.Context, q *sqlcgen.Queries, events []domain.Event) error {
	var keys []string
	for _, e := range events {
		if e.Video.Purged() {
			keys = append(keys, e.Video.ID.String())
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return q.EraseQuarantine(ctx, keys)
}

// PruneTombstones deletes the empty tombstones that were written longer ago than olderThan,
// and at least 30 days ago, by the clock of the database: those of purged videos, and of
// videos that a repair did not find. It deletes at most maxRows and returns how
// many. An event of such a video would be applied as the first one.
func (c *Catalog) PruneTombstones(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := c.queries.PruneProjectedTombstones(ctx, olderThan, limit(maxRows))
	return n, wrap(err, "prune tombstones of the catalog")
}

// outcomeOf is what the consumer calls the outcome of a fold.
var outcomeOf = map[domain.Outcome]envelope.Outcome{
	domain.Applied: envelope.Applied, domain.AppliedAfterGap: envelope.AppliedAfterGap,
	domain.Stale: envelope.Stale, domain.Conflict: envelope.Conflict,
}

// FindEntries returns the existing entries among ids, without the ids of their events.
func FindEntries(ctx context.Context, tx Tx, ids []uuid.UUID) (map[uuid.UUID]domain.Entry, error) {
	rows, err := sqlcgen.New(tx).GetProjections(ctx, ids)
	if err != nil {
		return nil, wrap(err, "find %d entries", len(ids))
	}
	found := make(map[uuid.UUID]domain.Entry, len(rows))
	for _, row := range rows {
		found[row.VideoID] = entryOf(sqlcgen.GetProjectionRow(row))
	}
	return found, nil
}

// LockEntries locks entries until the end of the transaction, and returns them as FindEntries does.
// It creates missing ones first, with version 0.
func LockEntries(ctx context.Context, tx Tx, ids []uuid.UUID) (map[uuid.UUID]domain.Entry, error) {
	if _, err := lockEntries(ctx, sqlcgen.New(tx), ids); err != nil {
		return nil, err
	}
	return FindEntries(ctx, tx, ids)
}

// WriteEntries writes entries over any version. The caller must have locked them.
func WriteEntries(ctx context.Context, tx Tx, entries map[uuid.UUID]domain.Entry) error {
	return upsert(ctx, sqlcgen.New(tx), entries)
}

// lockEntries locks entries until the end of the transaction, and returns their
// versions and events. It creates missing ones first, with version 0, so that
// they can be locked.
func lockEntries(ctx context.Context, q *sqlcgen.Queries, ids []uuid.UUID) (map[uuid.UUID]domain.Entry, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if err := q.InsertMissingProjections(ctx, ids); err != nil {
		return nil, fmt.Errorf("insert missing projections: %w", err)
	}
	rows, err := q.LockProjections(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("lock projections: %w", err)
	}
	entries := make(map[uuid.UUID]domain.Entry, len(rows))
	for _, row := range rows {
		entry := domain.Entry{VideoID: row.VideoID, Version: row.Version}
		if row.EventID != nil {
			entry.EventID = *row.EventID
		}
		entries[row.VideoID] = entry
	}
	return entries, nil
}

// upsert writes entries. The caller must have locked them.
func upsert(ctx context.Context, q *sqlcgen.Queries, entries map[uuid.UUID]domain.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	var params sqlcgen.UpsertProjectionsParams
	for _, e := range entries {
		publishTime := e.PublishTime
		if publishTime.IsZero() {
			publishTime = time.Unix(0, 0)
		}
		params.VideoIds = append(params.VideoIds, e.VideoID)
		params.Titles = append(params.Titles, e.Title)
		params.Descriptions = append(params.Descriptions, e.Description)
		params.ReleaseYears = append(params.ReleaseYears, e.ReleaseYear)
		params.DurationsMs = append(params.DurationsMs, e.Duration.Milliseconds())
		params.LanguageCodes = append(params.LanguageCodes, e.LanguageCode)
		params.Tags = append(params.Tags, arrayLiteral(e.Tags))
		params.Visible = append(params.Visible, e.Visible)
		params.Deleted = append(params.Deleted, e.Deleted)
		params.Versions = append(params.Versions, e.Version)
		params.EventIds = append(params.EventIds, e.EventID)
		params.PublishTimes = append(params.PublishTimes, publishTime)
		params.UpdateTimes = append(params.UpdateTimes, e.UpdateTime)
		params.Searches = append(params.Searches, searchOf(e))
	}
	return q.UpsertProjections(ctx, params)
}

// searchOf returns the search document of an entry; "" if it is not visible.
func searchOf(e domain.Entry) string {
	if !e.Visible {
		return ""
	}
	texts := []search.Text{{Words: e.Title, Weight: 'A', Parts: true}}
	for _, tag := range e.Tags {
		texts = append(texts, search.Text{Words: tag, Weight: 'B'})
	}
	return search.Document(append(texts, search.Text{Words: e.Description, Weight: 'C'})...)
}

// arrayLiteral formats a text[] as text, because unnest would flatten an array
// of arrays (https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO).
func arrayLiteral(values []string) string {
	quoted := mapSlice(values, func(value string) string { return `"` + escapeElement.Replace(value) + `"` })
	return "{" + strings.Join(quoted, ",") + "}"
}

var escapeElement = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// GetEntry returns an entry, even a hidden one. It returns problem.NotFound if
// no event of the video has arrived.
func (c *Catalog) GetEntry(ctx context.Context, id uuid.UUID) (domain.Entry, error) {
	row, err := c.queries.GetProjection(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.Entry{}, problem.Errorf(problem.NotFound, "catalog entry %q does not exist", id)
	}
	if err != nil {
		return domain.Entry{}, wrap(err, "get entry %s", id)
	}
	return entryOf(row), nil
}

// ListEntries returns a page of the visible entries, and whether more follow.
func (c *Catalog) ListEntries(ctx context.Context, query domain.EntryQuery) (entries []domain.Entry, more bool, err error) {
	if query.ByTitle {
		after := query.After
		if after == nil {
			after = &domain.EntryCursor{} // no title is empty
		}
		rows, err := c.queries.ListProjectionsByTitle(ctx, sqlcgen.ListProjectionsByTitleParams{
			AfterTitle: after.Title, AfterID: after.VideoID,
			LanguageCode: optional(query.LanguageCode), ReleaseYear: optional(query.ReleaseYear), Tags: query.Tags,
			OneMore: limit(query.Limit + 1), PageSize: limit(query.Limit), MaxBytes: byteLimit(query.MaxBytes),
		})
		if err != nil {
			return nil, false, wrap(err, "list entries")
		}
		return mapSlice(rows, func(row sqlcgen.ListProjectionsByTitleRow) domain.Entry {
			return listedEntry(sqlcgen.ListProjectionsNewestFirstRow(row))
		}), len(rows) > 0 && rows[len(rows)-1].HasNext, nil
	}
	after := query.After
	if after == nil {
		after = &domain.EntryCursor{PublishTime: endOfTime, VideoID: uuid.Max}
	}
	rows, err := c.queries.ListProjectionsNewestFirst(ctx, sqlcgen.ListProjectionsNewestFirstParams{
		BeforeTime: after.PublishTime, BeforeID: after.VideoID,
		LanguageCode: optional(query.LanguageCode), ReleaseYear: optional(query.ReleaseYear), Tags: query.Tags,
		OneMore: limit(query.Limit + 1), PageSize: limit(query.Limit), MaxBytes: byteLimit(query.MaxBytes),
	})
	if err != nil {
		return nil, false, wrap(err, "list entries")
	}
	return mapSlice(rows, listedEntry), len(rows) > 0 && rows[len(rows)-1].HasNext, nil
}

func listedEntry(row sqlcgen.ListProjectionsNewestFirstRow) domain.Entry {
	return entryOf(sqlcgen.GetProjectionRow{
		VideoID: row.VideoID, Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear, DurationMs: row.DurationMs,
		LanguageCode: row.LanguageCode, Tags: row.Tags, Visible: row.Visible, Deleted: row.Deleted, Version: row.Version,
		PublishTime: row.PublishTime, UpdateTime: row.UpdateTime,
	})
}

// SearchEntries returns a page of the visible entries that match, best first,
// and whether more follow. Words without any letter or digit match nothing.
func (c *Catalog) SearchEntries(ctx context.Context, query domain.SearchQuery) (matches []domain.Match, more bool, err error) {
	words := search.Query(query.Words, true)
	if words == "" {
		return nil, false, nil
	}
	after := query.After
	if after == nil {
		after = &domain.MatchCursor{Rank: math.MaxFloat32, VideoID: uuid.Max}
	}
	rows, err := c.queries.SearchProjections(ctx, sqlcgen.SearchProjectionsParams{
		Query: words, WholeWords: search.Query(query.Words, false), BeforeRank: after.Rank, BeforeID: after.VideoID,
		OneMore: limit(query.Limit + 1), PageSize: limit(query.Limit), MaxBytes: byteLimit(query.MaxBytes),
	})
	if err != nil {
		return nil, false, wrap(err, "search entries")
	}
	return mapSlice(rows, func(row sqlcgen.SearchProjectionsRow) domain.Match {
		return domain.Match{
			Entry: entryOf(sqlcgen.GetProjectionRow{
				VideoID: row.VideoID, Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear, DurationMs: row.DurationMs,
				LanguageCode: row.LanguageCode, Tags: row.Tags, Visible: row.Visible, Deleted: row.Deleted, Version: row.Version,
				PublishTime: row.PublishTime, UpdateTime: row.UpdateTime,
			}),
			Rank: row.Rank,
		}
	}), len(rows) > 0 && rows[len(rows)-1].HasNext, nil
}

func entryOf(row sqlcgen.GetProjectionRow) domain.Entry {
	return domain.Entry{
		VideoID: row.VideoID,
		Details: domain.Details{
			Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear,
			Duration: time.Duration(row.DurationMs) * time.Millisecond, LanguageCode: row.LanguageCode, Tags: row.Tags,
		},
		Visible: row.Visible, Deleted: row.Deleted, Version: row.Version,
		PublishTime: timeOf(row.PublishTime), UpdateTime: row.UpdateTime.UTC(),
	}
}
