package repair

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/options/repair/internal/sqlcgen"
)

// videos are the videos and their catalog.
type videos struct{ entity }

func newVideos(commands, queries *pgxpool.Pool) videos {
	return videos{entity{
		name: event.AggregateVideo,
		owner: table{
			pool: commands, name: "video_catalog.videos", key: "id",
			row: `jsonb_build_object('id', r.id, 'title', title, 'description', description, 'release_year', release_year, 'duration_ms', duration_ms,
				'language_code', language_code, 'tags', tags, 'visible', state = 'published' AND delete_time IS NULL, 'deleted', delete_time IS NOT NULL,
				'version', version, 'publish_time', publish_time, 'update_time', update_time,
				'create_user', create_user, 'update_user', update_user)`,
			deleted: "delete_time IS NOT NULL", tombstone: "delete_time IS NOT NULL AND title = ''",
		},
		view: table{
			pool: queries, name: "video_catalog_read.video_projection", key: "video_id",
			row: `jsonb_build_object('id', r.video_id, 'title', title, 'description', description, 'release_year', release_year, 'duration_ms', duration_ms,
				'language_code', language_code, 'tags', tags, 'visible', visible, 'deleted', deleted,
				'version', version, 'publish_time', publish_time, 'update_time', update_time,
				'create_user', create_user, 'update_user', update_user)`,
			deleted: "deleted", tombstone: "deleted AND title = ''",
		},
	}}
}

// rewrite implements projection. It also writes the words of a search, and the id of its transaction,
// so that watches see the change. It reads the owner again for that: a later version is as right.
func (v videos) rewrite(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) (map[uuid.UUID]seen, error) {
	entries, err := store.LockEntries(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	found, _, err := v.differing(ctx, tx, ids, true)
	if err != nil {
		return nil, err
	}
	owned, err := store.NewVideos(v.owner.pool, nil).FindVideos(ctx, ids)
	want := make(map[uuid.UUID]domain.Entry, len(found))
	for id, s := range found {
		want[id] = domain.Entry{VideoID: id, Version: max(s.version, s.ownerVersion), Deleted: true, UpdateTime: entries[id].UpdateTime}
		if video, exists := owned[id]; exists {
			want[id] = domain.EntryOf(video)
		}
	}
	store.WriteEntries(ctx, tx, want)
	return found, err
}

// futureRows is how many rows one transaction moves from the future.
const futureRows = 1000

// moveFuture implements projection. An entry whose transaction id is still in the future is not
// visible to watches, and gets the current id. A dump that was restored into a younger cluster has
// such entries. After a crash, the next call moves the rest.
func (v videos) moveFuture(ctx context.Context) (more bool, err error) {
	n, err := sqlcgen.New(v.view.pool).MoveFutureProjections(ctx, futureRows)
	return n == futureRows, pg.Wrap(err, "move changes of the future")
}
