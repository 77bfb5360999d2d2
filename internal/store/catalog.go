package store

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/search"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Catalog stores the query side: the projection, guarded by the inbox. It is
// safe for concurrent use.
type Catalog struct {
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
	inbox   *pg.Inbox
	changes *Changes
}

// NewCatalog returns the query side of a pool. Only [Catalog.Changed] of this catalog announces its
// changes: see [Changes].
func NewCatalog(pool *pgxpool.Pool) *Catalog { return NewChanges().Catalog(pool) }

// Changed is [Changes.Changed].
func (c *Catalog) Changed() <-chan struct{} { return c.changes.Changed() }

// Changes announces the changes that this process makes to its catalogs, on any pool.
type Changes struct {
	mu   sync.Mutex
	next chan struct{} // guarded by mu; closed and replaced at every change
}

// NewChanges returns changes without a catalog.
func NewChanges() *Changes { return &Changes{next: make(chan struct{})} }

// Catalog returns the query side of a pool, whose changes are announced here.
func (c *Changes) Catalog(pool *pgxpool.Pool) *Catalog {
	return &Catalog{pool: pool, queries: sqlcgen.New(pg.Autocommit(pool)), inbox: pg.NewInbox(pool), changes: c}
}

// Changed returns a channel that is closed at the next change by this process. Other processes
// also change the catalog, so callers must poll too.
func (c *Changes) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

func (c *Changes) announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.next)
	c.next = make(chan struct{})
}

// Project applies events for a consumer in one transaction, each once, and returns their
// outcomes. On an error no event took effect. An earlier transaction deletes the quarantined
// messages of the videos that the events purge, but for the purges, and an error does not undo it.
func (c *Catalog) Project(ctx context.Context, consumerName string, events []domain.VideoEvent) ([]envelope.Outcome, error) {
	if err := c.eraseQuarantined(ctx, events); err != nil {
		return nil, err
	}
	outcomes, err := pg.Project(ctx, c.inbox, consumerName, events, videoRows{})
	if slices.ContainsFunc(outcomes, func(o envelope.Outcome) bool { return o != envelope.Stale && o != envelope.Duplicate }) {
		c.changes.announce()
	}
	return outcomes, err
}

// projectEntry writes an entry, unless the catalog has a newer one. event is uuid.Nil if a
// repair writes the entry.
func projectEntry(ctx context.Context, tx *pg.Tx, e domain.Entry, event uuid.UUID) {
	tx.Queue(sqlcgen.New(tx).ProjectVideo(ctx, sqlcgen.ProjectVideoParams{
		VideoID: e.VideoID, EventID: pg.Optional(event),
		Title:        e.Title,
		Description:  e.Description,
		ReleaseYear:  e.ReleaseYear,
		DurationMs:   e.Duration.Milliseconds(),
		LanguageCode: e.LanguageCode,
		Tags:         pg.NotNil(e.Tags),
		Visible:      e.Visible, Deleted: e.Deleted, Version: e.Version,
		PublishTime: pg.Optional(e.PublishTime), UpdateTime: e.UpdateTime, Search: searchOf(e),
		CreateUser: pg.Escape(e.CreateUser), UpdateUser: pg.Escape(e.UpdateUser),
	}))
}

// eraseQuarantined deletes the quarantined messages of videos that are purged by the events, but for the purges. Stale
// events count, because a repair may have been faster. Duplicates count, because an older message
// may have been delivered again, too.
func (c *Catalog) eraseQuarantined(ctx context.Context, events []domain.VideoEvent) error {
	var keys []string
	var versions []int64
	for _, e := range events {
		if e.Video.Purged() {
			keys, versions = append(keys, e.Video.ID.String()), append(versions, e.Video.Version)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return pg.WrapEvents(c.queries.EraseQuarantine(ctx, keys, versions), "erase the quarantine of %d videos", len(keys))
}

// PruneTombstones deletes the empty tombstones that were written longer ago than olderThan,
// and at least 30 days ago, by the clock of the database. Purged videos, and videos that a
// repair did not find, have one. It deletes at most maxRows and returns how many. An event
// that comes later is applied as the first event of its video.
func (c *Catalog) PruneTombstones(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := c.queries.PruneProjectedTombstones(ctx, olderThan, pg.Limit(maxRows))
	return n, pg.Wrap(err, "prune tombstones of the catalog")
}

// LockEntries locks entries until the end of the transaction, and returns them. It creates
// missing ones first, with version 0.
func LockEntries(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) (map[uuid.UUID]domain.Entry, error) {
	rows, err := sqlcgen.New(tx).LockProjections(ctx, ids)
	if err != nil {
		return nil, pg.Wrap(err, "lock %d entries", len(ids))
	}
	locked := make(map[uuid.UUID]domain.Entry, len(rows))
	for _, row := range rows {
		locked[row.VideoID] = entryOf(sqlcgen.GetProjectionRow(row))
	}
	return locked, nil
}

// WriteEntries writes entries over any version. The caller must have locked them.
func WriteEntries(ctx context.Context, tx *pg.Tx, entries map[uuid.UUID]domain.Entry) {
	tx.Queue(sqlcgen.New(tx).ResetProjections(ctx, slices.Collect(maps.Keys(entries))))
	for _, entry := range entries {
		projectEntry(ctx, tx, entry, uuid.Nil)
	}
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

// GetEntry returns an entry, even a hidden one. It returns problem.NotFound if
// no event of the video has arrived.
func (c *Catalog) GetEntry(ctx context.Context, id uuid.UUID) (domain.Entry, error) {
	row, err := c.queries.GetProjection(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.Entry{}, problem.Errorf(problem.NotFound, "catalog entry %q does not exist", id)
	}
	if err != nil {
		return domain.Entry{}, pg.Wrap(err, "get entry %s", id)
	}
	return entryOf(row), nil
}

// ListEntries returns a page of the visible entries, and whether more follow.
func (c *Catalog) ListEntries(ctx context.Context, query domain.EntryQuery) (entries []domain.Entry, more bool, err error) {
	p := pg.NewPage(c.pool, query.Limit)
	if query.ByTitle {
		after := cmp.Or(query.After, &domain.EntryCursor{}) // no title is empty
		rows, err := sqlcgen.New(p).ListProjectionsByTitle(ctx, sqlcgen.ListProjectionsByTitleParams{
			AfterTitle: after.Title, AfterID: after.VideoID,
			LanguageCode: pg.Optional(query.LanguageCode), ReleaseYear: pg.Optional(query.ReleaseYear), Tags: query.Tags,
			MaxRows: p.MaxRows(),
		})
		return pg.MapSlice(rows, func(row sqlcgen.ListProjectionsByTitleRow) domain.Entry {
			return entryOf(sqlcgen.GetProjectionRow(row))
		}), p.More, pg.Wrap(err, "list entries")
	}
	after := cmp.Or(query.After, &domain.EntryCursor{PublishTime: pg.EndOfTime, VideoID: uuid.Max})
	rows, err := sqlcgen.New(p).ListProjectionsNewestFirst(ctx, sqlcgen.ListProjectionsNewestFirstParams{
		BeforeTime: after.PublishTime, BeforeID: after.VideoID,
		LanguageCode: pg.Optional(query.LanguageCode), ReleaseYear: pg.Optional(query.ReleaseYear), Tags: query.Tags,
		MaxRows: p.MaxRows(),
	})
	return pg.MapSlice(rows, func(row sqlcgen.ListProjectionsNewestFirstRow) domain.Entry {
		return entryOf(sqlcgen.GetProjectionRow(row))
	}), p.More, pg.Wrap(err, "list entries")
}

// SearchEntries returns a page of the visible entries that match, best first,
// and whether more follow. Words without any letter or digit match nothing.
func (c *Catalog) SearchEntries(ctx context.Context, query domain.SearchQuery) (matches []domain.Match, more bool, err error) {
	words := search.Query(query.Words, true)
	if words == "" {
		return nil, false, nil
	}
	after := cmp.Or(query.After, &domain.MatchCursor{Rank: math.MaxFloat32, VideoID: uuid.Max})
	p := pg.NewPage(c.pool, query.Limit)
	rows, err := sqlcgen.New(p).SearchProjections(ctx, sqlcgen.SearchProjectionsParams{
		Query: words, WholeWords: search.Query(query.Words, false), BeforeRank: after.Rank, BeforeID: after.VideoID,
		MaxRows: p.MaxRows(),
	})
	return pg.MapSlice(rows, func(row sqlcgen.SearchProjectionsRow) domain.Match {
		return domain.Match{
			Entry: entryOf(sqlcgen.GetProjectionRow{
				VideoID: row.VideoID, Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear, DurationMs: row.DurationMs,
				LanguageCode: row.LanguageCode, Tags: row.Tags, Visible: row.Visible, Deleted: row.Deleted, Version: row.Version,
				PublishTime: row.PublishTime, UpdateTime: row.UpdateTime, CreateUser: row.CreateUser, UpdateUser: row.UpdateUser,
			}),
			Rank: row.Rank,
		}
	}), p.More, pg.Wrap(err, "search entries")
}

func entryOf(row sqlcgen.GetProjectionRow) domain.Entry {
	return domain.Entry{
		VideoID: row.VideoID,
		VideoDetails: domain.VideoDetails{
			Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear,
			Duration: time.Duration(row.DurationMs) * time.Millisecond, LanguageCode: row.LanguageCode, Tags: row.Tags,
		},
		Visible: row.Visible, Deleted: row.Deleted, Version: row.Version,
		PublishTime: pg.TimeOf(row.PublishTime), UpdateTime: row.UpdateTime.UTC(),
		CreateUser: pg.Unescape(row.CreateUser), UpdateUser: pg.Unescape(row.UpdateUser),
	}
}
