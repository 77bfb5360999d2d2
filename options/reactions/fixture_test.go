package reactions

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/options/reactions/timers"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fact is an event of a video, with timers, which the videos of the service do not have.
type fact struct {
	domain.VideoEvent

	Timers map[string]time.Duration
}

// clips are videos with timers.
type clips struct{ *store.Videos }

func newClips(pool *pgxpool.Pool, onCommit func()) clips {
	return clips{store.NewVideos(pool, onCommit)}
}

// Decide implements Aggregates.
func (c clips) Decide(ctx context.Context, tx *pg.Tx, id uuid.UUID, before domain.Video, decide func(domain.Video) (*fact, error)) (domain.Video, bool, error) {
	var made *fact
	after, changed, err := c.Videos.Decide(ctx, tx, id, before, func(v domain.Video) (e *domain.VideoEvent, err error) {
		if made, err = decide(v); made == nil || err != nil {
			return nil, err
		}
		return &made.VideoEvent, nil
	})
	if changed && err == nil {
		err = timers.Set(ctx, tx, envelope.Message{ID: made.ID, AggregateType: event.AggregateVideo, AggregateID: id.String(), Causation: envelope.Causation(made.Causation)}, made.Timers)
	}
	return after, changed, err
}

// change runs a command on a clip.
func (c clips) change(ctx context.Context, id uuid.UUID, decide func(domain.Video) (*fact, error)) error {
	pool, _ := c.Base()
	changed := false
	err := pg.InTx(ctx, pool, "test", func(ctx context.Context, tx *pg.Tx) error {
		locked, err := c.Lock(ctx, tx, []uuid.UUID{id}, false)
		if err == nil {
			_, changed, err = c.Decide(ctx, tx, id, locked[id], decide)
		}
		return err
	})
	if changed {
		c.Committed(err)
	}
	return err
}

// A fact of a decision has no timers: see [of].
func of(e *domain.VideoEvent, err error) (*fact, error) {
	if e == nil || err != nil {
		return nil, err
	}
	return &fact{VideoEvent: *e}, nil
}

// The timers of a fact, by name: see [after].
type after = map[string]time.Duration

// newClip stores a video, and returns its id.
func newClip(t testing.TB, c clips) uuid.UUID {
	t.Helper()
	at, err := stamp(domain.Causation{})
	must(t, err)
	created, err := domain.CreateVideo(newID(t), domain.VideoDetails{Title: "Ran"}, at)
	if err == nil {
		_, err = c.CreateVideo(t.Context(), uuid.Nil, nil, created)
	}
	must(t, err)
	return created.Video.ID
}

func someClips(t testing.TB, c clips, n int) (ids []uuid.UUID) {
	t.Helper()
	for range n {
		ids = append(ids, newClip(t, c))
	}
	return ids
}

// stored makes a database with some clips, and opens it with some connections.
func stored(t testing.TB, conns int32, n int) (*pgxpool.Pool, clips, []uuid.UUID) {
	t.Helper()
	pool := pgtest.Pool(t, conns)
	c := newClips(pool, nil)
	return pool, c, someClips(t, c, n)
}

// retitled is the event that gives a video another title.
func retitled(v domain.Video, title string, stamp domain.Stamp) (*fact, error) {
	return of(domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = title }, domain.AnyVersion, stamp)(v))
}

// tagged is the event that gives a video one more tag.
func tagged(v domain.Video, tag string, stamp domain.Stamp) (*fact, error) {
	return of(domain.UpdateVideo(func(d *domain.VideoDetails) { d.Tags = append(slices.Clone(v.Tags), tag) }, domain.AnyVersion, stamp)(v))
}

// set changes videos, and sets timers with their events.
func set(t testing.TB, c clips, timers after, ids ...uuid.UUID) {
	t.Helper()
	for _, id := range ids {
		must(t, c.change(t.Context(), id, rename(newID(t).String(), timers)))
	}
}

// rename is a decision with timers.
func rename(title string, timers after) func(domain.Video) (*fact, error) {
	return func(v domain.Video) (*fact, error) {
		at, err := stamp(domain.Causation{})
		if err != nil {
			return nil, err
		}
		e, err := retitled(v, title, at)
		if e != nil {
			e.Timers = timers
		}
		return e, err
	}
}

func newID(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	must(t, err)
	return id
}
