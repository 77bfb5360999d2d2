package store

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// RebuildEntries writes entries from the state of their owner. It skips entries
// of which the projection has a later version, and returns their ids. It may
// run concurrently with Project.
func (c *Catalog) RebuildEntries(ctx context.Context, entries []domain.Entry) (ahead []uuid.UUID, err error) {
	if len(entries) == 0 {
		return nil, nil
	}
	news := make(map[uuid.UUID]domain.Entry, len(entries))
	for _, entry := range entries {
		if entry.Version >= news[entry.VideoID].Version {
			news[entry.VideoID] = entry
		}
	}
	err = inTx(ctx, c.pool, "store.RebuildEntries", func(ctx context.Context, q *sqlcgen.Queries) error {
		rows, err := lockEntries(ctx, q, slices.Collect(maps.Keys(news)))
		if err != nil {
			return err
		}
		for id, row := range rows {
			if row.Version > news[id].Version {
				ahead = append(ahead, id)
				delete(news, id)
			}
		}
		return upsert(ctx, q, news)
	})
	if err != nil {
		return nil, wrap(err, "rebuild %d entries", len(entries))
	}
	c.changes.announce()
	return ahead, nil
}

// LowerEntry writes an entry even over a later version. It writes nothing if
// the row has changed since it was read at the given position. done reports
// whether it was written.
func (c *Catalog) LowerEntry(ctx context.Context, entry domain.Entry, read domain.Position) (done bool, err error) {
	err = inTx(ctx, c.pool, "store.LowerEntry", func(ctx context.Context, q *sqlcgen.Queries) error {
		rows, err := q.LockProjections(ctx, []uuid.UUID{entry.VideoID})
		if err != nil {
			return fmt.Errorf("lock projection: %w", err)
		}
		if done = len(rows) == 1 && rows[0].ChangeXid == read.Transaction; !done {
			return nil
		}
		return upsert(ctx, q, map[uuid.UUID]domain.Entry{entry.VideoID: entry})
	})
	if err != nil {
		return false, wrap(err, "lower entry %s", entry.VideoID)
	}
	if done {
		c.changes.announce()
	}
	return done, nil
}

// FindEntries returns the existing entries among ids, each with the position of
// its last change.
func (c *Catalog) FindEntries(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]domain.Change, error) {
	rows, err := c.queries.GetProjectionPlaces(ctx, ids)
	if err != nil {
		return nil, wrap(err, "find %d entries", len(ids))
	}
	found := make(map[uuid.UUID]domain.Change, len(rows))
	for _, row := range rows {
		found[row.VideoID] = domain.Change{
			Entry: entryOf(sqlcgen.GetProjectionRow{
				VideoID: row.VideoID, Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear, DurationMs: row.DurationMs,
				LanguageCode: row.LanguageCode, Tags: row.Tags, Visible: row.Visible, Deleted: row.Deleted, Version: row.Version,
				PublishTime: row.PublishTime, UpdateTime: row.UpdateTime,
			}),
			Position: domain.Position{Transaction: row.ChangeXid, VideoID: row.VideoID},
		}
	}
	return found, nil
}

// ListEntryIDs returns at most maxRows ids of entries after the given id, in
// order.
func (c *Catalog) ListEntryIDs(ctx context.Context, after uuid.UUID, maxRows int) ([]uuid.UUID, error) {
	ids, err := c.queries.ListProjectionIDs(ctx, after, limit(maxRows))
	return ids, wrap(err, "list ids of entries")
}
