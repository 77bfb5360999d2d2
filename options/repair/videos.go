package repair

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
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/options/repair/internal/sqlcgen"
)

// videos compares the catalog with the videos, and repairs the catalog. Each query reads one side,
// so the sides may be in two databases.
type videos struct{ commands, queries *pgxpool.Pool }

func newVideos(commands, queries *pgxpool.Pool) videos { return videos{commands, queries} }

// source implements projection. The whole source has the tombstones of purged videos. Each side
// prunes its own, so a missing tombstone is no difference for a comparison. A repair writes it: in
// an empty catalog it keeps out the events before the purge.
func (v videos) source(whole bool) source {
	return source{
		name: event.AggregateVideo, owner: comparedVideos{v.commands, whole}, projection: comparedEntries{v.queries, whole},
		look: func(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]seen, error) {
			found, err := v.find(ctx, ids, whole)
			all := make(map[uuid.UUID]seen, len(found))
			for id, pair := range found {
				all[id] = pair.seen
			}
			return all, err
		},
		pending: pendingOf(v.commands, event.AggregateVideo),
	}
}

// comparedVideos implements side for the videos.
type comparedVideos struct {
	pool       *pgxpool.Pool
	tombstones bool
}

func (s comparedVideos) bound(ctx context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	ids, err := sqlcgen.New(s.pool).BoundVideos(ctx, after, int32(maxRows-1)) //nolint:gosec // a page
	return firstOrMax(ids), store.Wrap(err, "bound videos after %s", after)
}

func (s comparedVideos) digest(ctx context.Context, after, upTo uuid.UUID, each bool) ([]digest, error) {
	rows, err := sqlcgen.New(s.pool).DigestVideos(ctx, sqlcgen.DigestVideosParams{Each: each, UpTo: upTo, AfterID: after, Tombstones: s.tombstones})
	digests := make([]digest, len(rows))
	for i, row := range rows {
		digests[i] = digest(row)
	}
	return digests, store.Wrap(err, "digest videos after %s", after)
}

// comparedEntries implements side for the catalog.
type comparedEntries struct {
	pool       *pgxpool.Pool
	tombstones bool
}

func (s comparedEntries) bound(ctx context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	ids, err := sqlcgen.New(s.pool).BoundProjections(ctx, after, int32(maxRows-1)) //nolint:gosec // a page
	return firstOrMax(ids), store.Wrap(err, "bound entries after %s", after)
}

func (s comparedEntries) digest(ctx context.Context, after, upTo uuid.UUID, each bool) ([]digest, error) {
	rows, err := sqlcgen.New(s.pool).DigestProjections(ctx, sqlcgen.DigestProjectionsParams{Each: each, UpTo: upTo, AfterID: after, Tombstones: s.tombstones})
	digests := make([]digest, len(rows))
	for i, row := range rows {
		digests[i] = digest(row)
	}
	return digests, store.Wrap(err, "digest entries after %s", after)
}

func firstOrMax(ids []uuid.UUID) uuid.UUID {
	if len(ids) == 0 {
		return uuid.Max
	}
	return ids[0]
}

// differing is an entry that differs from its owner.
type differing struct {
	seen

	want domain.Entry // what the owner has; a tombstone if it has nothing
	was  domain.Entry // of version 0 if the catalog does not have it
}

// find returns the entries that differ; if tombstones is true, also tombstones that the catalog lacks.
// It reads the catalog first: the owner then has every version that the catalog has, unless the owner
// has lost it. A tombstone of a video that the owner does not have is no difference.
func (v videos) find(ctx context.Context, ids []uuid.UUID, tombstones bool) (map[uuid.UUID]differing, error) {
	entries, err := store.FindEntries(ctx, v.queries, ids)
	if err != nil {
		return nil, err
	}
	owned, err := store.NewVideos(v.commands, nil).FindVideos(ctx, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[uuid.UUID]differing)
	for id, video := range owned {
		d := differing{want: domain.EntryOf(video), was: entries[id]}
		d.seen = seen{ownerVersion: d.want.Version, version: d.was.Version}
		if d.version == 0 && video.Purged() && !tombstones { // it was pruned
			continue
		}
		if d.version == d.ownerVersion {
			d.fields = differingFields(d.was, d.want)
		}
		if d.version != d.ownerVersion || len(d.fields) > 0 {
			found[id] = d
		}
		delete(entries, id)
	}
	for id, was := range entries {
		if !was.Deleted {
			found[id] = differing{
				seen: seen{version: was.Version}, was: was,
				want: domain.Entry{VideoID: id, Version: was.Version, Deleted: true, UpdateTime: was.UpdateTime},
			}
		}
	}
	return found, nil
}

// differingFields returns the names of the columns in which two entries of one version differ.
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

// repair implements projection. It writes the state of the owner, over any version. An entry that
// was changed since it was read is not written, because the owner may have a later state now. If an
// event has brought a later version, the entry needs no repair.
func (v videos) repair(ctx context.Context, ids []uuid.UUID, e admin.Entry) (repaired int, changed []uuid.UUID, err error) {
	found, err := v.find(ctx, ids, true)
	if err != nil || len(found) == 0 {
		return 0, nil, err
	}
	var lowered []uuid.UUID
	err = store.InTx(ctx, v.queries, "repair.Videos", func(ctx context.Context, tx store.Tx) error {
		now, err := store.LockEntries(ctx, tx, slices.Collect(maps.Keys(found)))
		if err != nil {
			return err
		}
		news := make(map[uuid.UUID]domain.Entry, len(found))
		before, after := []repairedVideo{}, []repairedVideo{} // in JSON [], not null
		for id, d := range found {
			entry := now[id]
			if entry.Version > d.was.Version && d.kind() != ahead && d.kind() != extra {
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
			if d.version == 0 { // nothing is lost: items counts it
				continue
			}
			before = append(before, repairedVideo{VideoID: id, Kind: d.kind(), OwnerVersion: d.ownerVersion, Version: d.version, Fields: d.fields})
			after = append(after, repairedVideo{VideoID: id, OwnerVersion: d.ownerVersion, Version: d.want.Version, Deleted: d.want.Deleted})
		}
		if repaired = len(news); repaired == 0 {
			return nil
		}
		store.WriteEntries(ctx, tx, news)
		return record(ctx, tx, event.AggregateVideo, repaired, before, after, e)
	})
	if err != nil {
		return 0, nil, store.Wrap(err, "repair %d entries", len(ids))
	}
	// An entry that was ahead may have taken an event of its owner for too old meanwhile.
	if len(lowered) == 0 {
		return repaired, changed, nil
	}
	again, err := v.find(ctx, lowered, true)
	if err != nil {
		return repaired, nil, err
	}
	return repaired - len(again), slices.AppendSeq(changed, maps.Keys(again)), nil
}

// repairedVideo is an entry before or after the repair, as the audit has it: without its content.
type repairedVideo struct {
	VideoID      uuid.UUID `json:"video_id"`
	Kind         kind      `json:"kind,omitempty"` // of the difference before
	OwnerVersion int64     `json:"owner_version"`
	Version      int64     `json:"version"`
	Deleted      bool      `json:"deleted,omitempty"` // it is a tombstone after
	Fields       []string  `json:"fields,omitempty"`
}

// futureRows is how many rows one transaction moves from the future.
const futureRows = 1000

// moveFuture implements projection. An entry whose transaction id is still in the future is not
// visible to watches, and gets the current id. A dump that was restored into a younger cluster has
// such entries. After a crash, the next call moves the rest.
func (v videos) moveFuture(ctx context.Context) (more bool, err error) {
	n, err := sqlcgen.New(v.queries).MoveFutureProjections(ctx, futureRows)
	return n == futureRows, store.Wrap(err, "move changes of the future")
}

// pendingOf returns a function that finds which of the given aggregates have a pending event.
func pendingOf(commands *pgxpool.Pool, aggregateType string) func(context.Context, []uuid.UUID) (map[uuid.UUID]bool, error) {
	return func(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
		texts := make([]string, len(ids))
		for i, id := range ids {
			texts[i] = id.String()
		}
		found, err := sqlcgen.New(commands).ListPendingAggregates(ctx, aggregateType, texts)
		if err != nil {
			return nil, store.Wrap(err, "find pending events of %d aggregates", len(ids))
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
}

// record appends a repair to the audit, and restarts the comparison of the projection. repaired is
// the number of its entries. before and after have those that were not missing.
func record[T any](ctx context.Context, tx store.Tx, aggregateType string, repaired int, before, after []T, e admin.Entry) (err error) {
	q := sqlcgen.New(tx)
	params := sqlcgen.InsertQueryAuditParams{
		ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason, Items: int64(repaired),
	}
	if params.Before, err = json.Marshal(before); err == nil {
		params.After, err = json.Marshal(after)
	}
	if err != nil {
		return fmt.Errorf("encode audit: %w", err)
	}
	store.Queue(q.InsertQueryAudit(ctx, params))
	store.Queue(q.RestartComparison(ctx, aggregateType))
	return nil
}
