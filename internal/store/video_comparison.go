package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/reconcile"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// VideoComparison compares the catalog with the videos, and repairs it. It is a tool of
// operators. It reads both sides, by queries of their own, so that they may be in two
// databases.
type VideoComparison struct {
	owner      *Videos
	projection *sqlcgen.Queries
	catalog    *Catalog
	tombstones bool // it compares those without content, too
}

var (
	_ reconcile.Entries = (*VideoComparison)(nil)
	_ admin.Repairer    = (*VideoComparison)(nil)
)

// NewVideoComparison returns a comparison over the pools of the two sides.
func NewVideoComparison(commands, queries *pgxpool.Pool) *VideoComparison {
	return &VideoComparison{owner: NewVideos(commands, nil), projection: queriesOver(queries), catalog: NewCatalog(queries)}
}

// Source returns the two sides.
func (c *VideoComparison) Source() reconcile.Source {
	return reconcile.Source{Type: event.AggregateVideo, Owner: comparedVideos{c}, Projection: comparedEntries{c}, Entries: c}
}

// Whole returns the two sides with the tombstones of purged videos. Each side prunes its own,
// so one that is missing is no difference. A repair writes it all the same: in an empty catalog
// it keeps out the events of before the purge.
func (c *VideoComparison) Whole() reconcile.Source {
	whole := *c
	whole.tombstones = true
	return whole.Source()
}

// comparedVideos implements reconcile.Side for the videos.
type comparedVideos struct{ *VideoComparison }

func (s comparedVideos) Bound(ctx context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	ids, err := s.owner.queries.BoundVideos(ctx, after, limit(maxRows-1))
	return firstOrMax(ids), wrap(err, "bound videos after %s", after)
}

func (s comparedVideos) Digest(ctx context.Context, after, upTo uuid.UUID, each bool) ([]reconcile.Digest, error) {
	rows, err := s.owner.queries.DigestVideos(ctx, sqlcgen.DigestVideosParams{Each: each, UpTo: upTo, AfterID: after, Tombstones: s.tombstones})
	return mapSlice(rows, func(row sqlcgen.DigestVideosRow) reconcile.Digest { return reconcile.Digest(row) }), wrap(err, "digest videos after %s", after)
}

// comparedEntries implements reconcile.Side for the catalog.
type comparedEntries struct{ *VideoComparison }

func (s comparedEntries) Bound(ctx context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	ids, err := s.projection.BoundProjections(ctx, after, limit(maxRows-1))
	return firstOrMax(ids), wrap(err, "bound entries after %s", after)
}

func (s comparedEntries) Digest(ctx context.Context, after, upTo uuid.UUID, each bool) ([]reconcile.Digest, error) {
	rows, err := s.projection.DigestProjections(ctx, sqlcgen.DigestProjectionsParams{Each: each, UpTo: upTo, AfterID: after, Tombstones: s.tombstones})
	return mapSlice(rows, func(row sqlcgen.DigestProjectionsRow) reconcile.Digest { return reconcile.Digest(row) }), wrap(err, "digest entries after %s", after)
}

func firstOrMax(ids []uuid.UUID) uuid.UUID {
	if len(ids) == 0 {
		return uuid.Max
	}
	return ids[0]
}

// Look implements reconcile.Entries. A tombstone of a video that the owner does not have is
// no difference: a repair leaves it.
func (c *VideoComparison) Look(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]reconcile.Seen, error) {
	compared, err := c.find(ctx, ids, c.tombstones)
	if err != nil {
		return nil, err
	}
	found := make(map[uuid.UUID]reconcile.Seen, len(compared))
	for id, pair := range compared {
		found[id] = pair.Seen
	}
	return found, nil
}

// Pending implements reconcile.Entries.
func (c *VideoComparison) Pending(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	return pendingAggregates(ctx, c.owner.queries, event.AggregateVideo, ids)
}

// differing is an entry that differs from its owner.
type differing struct {
	reconcile.Seen
	want domain.Entry // what the owner has; a tombstone if it has nothing
	was  domain.Entry // of version 0 if the catalog does not have it
}

// find returns what differs; with tombstones also those that the catalog lacks. It reads the catalog first: the owner then has every version
// that the catalog has, unless it has lost one.
func (c *VideoComparison) find(ctx context.Context, ids []uuid.UUID, tombstones bool) (map[uuid.UUID]differing, error) {
	entries, err := findEntries(ctx, c.projection, ids)
	if err != nil {
		return nil, err
	}
	videos, err := c.owner.FindVideos(ctx, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[uuid.UUID]differing)
	for id, video := range videos {
		d := differing{want: domain.EntryOf(video), was: entries[id]}
		d.Seen = reconcile.Seen{OwnerVersion: d.want.Version, Version: d.was.Version}
		if d.Version == 0 && video.Purged() && !tombstones { // it was pruned
			continue
		}
		if d.Version == d.OwnerVersion {
			d.Fields = differingFields(d.was, d.want)
		}
		if d.Version != d.OwnerVersion || len(d.Fields) > 0 {
			found[id] = d
		}
		delete(entries, id)
	}
	for id, was := range entries {
		if !was.Deleted {
			found[id] = differing{
				Seen: reconcile.Seen{Version: was.Version}, was: was,
				want: domain.Entry{VideoID: id, Version: was.Version, Deleted: true, UpdateTime: was.UpdateTime},
			}
		}
	}
	return found, nil
}

// findEntries returns the existing entries among ids.
func findEntries(ctx context.Context, q *sqlcgen.Queries, ids []uuid.UUID) (map[uuid.UUID]domain.Entry, error) {
	rows, err := q.GetProjections(ctx, ids)
	if err != nil {
		return nil, wrap(err, "find %d entries", len(ids))
	}
	found := make(map[uuid.UUID]domain.Entry, len(rows))
	for _, row := range rows {
		found[row.VideoID] = entryOf(sqlcgen.GetProjectionRow(row))
	}
	return found, nil
}

// differingFields returns the names of the columns in which two entries of a version differ.
func differingFields(a, b domain.Entry) []string {
	var names []string
	for _, field := range []struct {
		name string
		same bool
	}{
		{"title", a.Title == b.Title},
		{"description", a.Description == b.Description},
		{"release_year", a.ReleaseYear == b.ReleaseYear},
		{"duration_ms", a.Duration == b.Duration},
		{"language_code", a.LanguageCode == b.LanguageCode},
		{"tags", slices.Equal(a.Tags, b.Tags)},
		{"visible", a.Visible == b.Visible},
		{"deleted", a.Deleted == b.Deleted},
		{"publish_time", a.PublishTime.Equal(b.PublishTime)},
		{"update_time", a.UpdateTime.Equal(b.UpdateTime)},
	} {
		if !field.same {
			names = append(names, field.name)
		}
	}
	return names
}

// RepairEntries implements admin.Repairer. It writes the state of the owner, over any
// version. An entry that was changed since it was read is not written, because the owner may
// have a later state now. If an event has changed it, that has repaired it.
func (c *VideoComparison) RepairEntries(ctx context.Context, ids []uuid.UUID, e admin.Entry) (repaired int, changed []uuid.UUID, err error) {
	found, err := c.find(ctx, ids, true)
	if err != nil || len(found) == 0 {
		return 0, nil, err
	}
	var lowered []uuid.UUID
	err = inTx(ctx, c.catalog.pool, "store.RepairEntries", func(ctx context.Context, q *sqlcgen.Queries) error {
		// This also inserts those that are missing, with version 0.
		if _, err := lockEntries(ctx, q, slices.Collect(maps.Keys(found))); err != nil {
			return err
		}
		now, err := findEntries(ctx, q, slices.Collect(maps.Keys(found)))
		if err != nil {
			return err
		}
		news := make(map[uuid.UUID]domain.Entry, len(found))
		before, after := []repairedEntry{}, []repairedEntry{} // in JSON [], not null
		for id, d := range found {
			entry := now[id]
			if entry.Version > d.was.Version && d.Kind() != reconcile.Ahead && d.Kind() != reconcile.Extra {
				continue // an event was faster, and has brought a whole later state
			}
			if entry.Version != d.was.Version || entry.Version > 0 && len(differingFields(entry, d.was)) > 0 {
				changed = append(changed, id)
				continue
			}
			news[id] = d.want
			if d.was.Version > d.want.Version {
				lowered = append(lowered, id)
			}
			if d.Version == 0 { // nothing is lost: items counts it
				continue
			}
			before = append(before, repairedEntry{VideoID: id, Kind: d.Kind(), OwnerVersion: d.OwnerVersion, Version: d.Version, Fields: d.Fields})
			after = append(after, repairedEntry{VideoID: id, OwnerVersion: d.OwnerVersion, Version: d.want.Version, Deleted: d.want.Deleted})
		}
		if repaired = len(news); repaired == 0 {
			return nil
		}
		if err := upsert(ctx, q, news); err != nil {
			return err
		}
		return recordRepair(ctx, q, event.AggregateVideo, repaired, before, after, e)
	})
	if err != nil {
		return 0, nil, wrap(err, "repair %d entries", len(ids))
	}
	// An entry that was ahead may have taken an event of its owner for too old meanwhile.
	if len(lowered) == 0 {
		return repaired, changed, nil
	}
	again, err := c.find(ctx, lowered, true)
	if err != nil {
		return repaired, nil, err
	}
	return repaired - len(again), slices.AppendSeq(changed, maps.Keys(again)), nil
}

// repairedEntry is an entry in the audit, as it was before or is after. Its content is not
// in it.
type repairedEntry struct {
	VideoID      uuid.UUID      `json:"video_id"`
	Kind         reconcile.Kind `json:"kind,omitempty"` // of the difference before
	OwnerVersion int64          `json:"owner_version"`
	Version      int64          `json:"version"`
	Deleted      bool           `json:"deleted,omitempty"` // it is a tombstone after
	Fields       []string       `json:"fields,omitempty"`
}

// recordRepair appends the audit of a repair of so many entries, and has the projection
// compared again. before and after are the entries as they were and are. Missing ones are not
// in them.
func recordRepair[T any](ctx context.Context, q *sqlcgen.Queries, aggregateType string, repaired int, before, after []T, e admin.Entry) (err error) {
	params := sqlcgen.InsertQueryAuditParams{
		ActionID: e.ActionID, Actor: e.Actor.Name, Via: e.Actor.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason, Items: int64(repaired),
	}
	if params.Before, err = json.Marshal(before); err == nil {
		params.After, err = json.Marshal(after)
	}
	if err != nil {
		return fmt.Errorf("encode audit: %w", err)
	}
	if err := q.InsertQueryAudit(ctx, params); err != nil {
		return fmt.Errorf("append audit: %w", err)
	}
	return q.RestartComparison(ctx, aggregateType)
}

// pendingAggregates returns those of some aggregates that have an event in the outbox.
func pendingAggregates(ctx context.Context, q *sqlcgen.Queries, aggregateType string, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	found, err := q.ListPendingAggregates(ctx, aggregateType, mapSlice(ids, uuid.UUID.String))
	if err != nil {
		return nil, wrap(err, "find pending events of %d aggregates", len(ids))
	}
	pending := make(map[uuid.UUID]bool, len(found))
	for _, text := range found {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("aggregate id %q: %w", text, err)
		}
		pending[id] = true
	}
	return pending, nil
}
