package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/internal/timer"
)

// at changes a video and sets timers with the event.
func at(t testing.TB, videos *store.Videos, id uuid.UUID, timers ...domain.Timer) {
	t.Helper()
	if _, err := videos.ChangeVideo(t.Context(), id, rename(newID(t).String(), timers...)); err != nil {
		t.Fatal(err)
	}
}

// rename is a decision with timers.
func rename(title string, timers ...domain.Timer) domain.Decision {
	return func(v domain.Video) (*domain.Event, error) {
		stamp, err := realStamp()
		if err != nil {
			return nil, err
		}
		e, err := domain.Update([]domain.Field{domain.FieldTitle}, domain.Details{Title: title}, domain.AnyVersion, stamp)(v)
		if e != nil {
			e.Timers = timers
		}
		return e, err
	}
}

var errNotNow = errors.New("not now")

// ring is what videos do when a timer fires: they have its name as a tag.
func ring(v domain.Video, name string, stamp domain.Stamp) (*domain.Event, error) {
	switch name {
	case "broken":
		return nil, errNotNow
	case "panic":
		panic("of an alarm")
	}
	return domain.Update([]domain.Field{domain.FieldTags}, domain.Details{Tags: append(v.Tags, name)}, domain.AnyVersion, stamp)(v)
}

// now is the shortest time.
const now = time.Microsecond

func waiting(t testing.TB, timers timer.Timers) int64 {
	t.Helper()
	_, n, err := timers.Waiting(t.Context(), 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A timer fires once, whoever looks for it and whoever is interrupted, and not before it is
// due. Its event has the cause with which it was set.
func TestTimerFiresOnce(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 8)
	videos := store.NewVideos(pool, nil)
	timers := videos.Timers(ring, realStamp)
	ids := newVideos(t, videos, 50)
	for _, id := range ids {
		at(t, videos, id, domain.Timer{Name: "first", After: now}, domain.Timer{Name: "second", After: now}, domain.Timer{Name: "later", After: time.Hour})
	}
	var clocks sync.WaitGroup
	for range 6 {
		clocks.Go(func() {
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(30*time.Millisecond))
				_, _ = timers.Fire(ctx, 1+rand.N(20))
				cancel()
			}
		})
	}
	clocks.Wait()
	for waiting(t, timers) > int64(len(ids)) {
		if _, err := timers.Fire(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		v, err := videos.GetVideo(t.Context(), id)
		if err != nil || v.Version != 4 || len(v.Tags) != 2 || v.Tags[0] == v.Tags[1] {
			t.Errorf("version %d with tags %v, %v, want each timer once", v.Version, v.Tags, err)
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM video_catalog.outbox fired JOIN video_catalog.outbox set ON set.id = fired.causation_id
		WHERE fired.version > 2 AND set.version = 2 AND fired.correlation_id = set.id AND set.aggregate_id = fired.aggregate_id`); n != 2*len(ids) {
		t.Errorf("%d events have the cause with which their timer was set, want %d", n, 2*len(ids))
	}
}

// A timer is replaced and cancelled with an event, also by another timer of its aggregate that
// fires before it. A timer that is cancelled while another process fires it does one or the
// other, not both.
func TestTimerIsCancelled(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 8)
	videos := store.NewVideos(pool, nil)
	timers := videos.Timers(func(v domain.Video, name string, stamp domain.Stamp) (*domain.Event, error) {
		e, err := ring(v, name, stamp)
		if e != nil && name == "a" {
			e.Timers = []domain.Timer{{Name: "b"}}
		}
		return e, err
	}, realStamp)
	ids := newVideos(t, videos, 40)
	at(t, videos, ids[0], domain.Timer{Name: "a", After: now}, domain.Timer{Name: "b", After: now})
	at(t, videos, ids[1], domain.Timer{Name: "x", After: now})
	at(t, videos, ids[1], domain.Timer{Name: "x", After: time.Hour})
	at(t, videos, ids[2], domain.Timer{Name: "x", After: now})
	at(t, videos, ids[2], domain.Timer{Name: "x"})
	for range 3 {
		if _, err := timers.Fire(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if n := waiting(t, timers); n != 1 {
		t.Errorf("%d timers wait, want the one that was set to another time", n)
	}
	for i, want := range []string{"a", "", ""} {
		if v, err := videos.GetVideo(t.Context(), ids[i]); err != nil || strings.Join(v.Tags, ",") != want {
			t.Errorf("video %d has the tags %v, %v, want %q", i, v.Tags, err, want)
		}
	}

	raced := ids[3:]
	for _, id := range raced {
		at(t, videos, id, domain.Timer{Name: "x", After: now})
	}
	var both sync.WaitGroup
	both.Go(func() {
		for _, id := range raced {
			_, _ = videos.ChangeVideo(t.Context(), id, func(v domain.Video) (*domain.Event, error) {
				if len(v.Tags) > 0 {
					return nil, nil
				}
				return rename("cancelled", domain.Timer{Name: "x"})(v)
			})
		}
	})
	both.Go(func() {
		for range 2 * len(raced) {
			_, _ = timers.Fire(t.Context(), 1)
		}
	})
	both.Wait()
	if n := waiting(t, timers); n != 1 {
		t.Errorf("%d timers wait, want 1", n)
	}
	for _, id := range raced {
		v, err := videos.GetVideo(t.Context(), id)
		if fired := len(v.Tags) == 1; err != nil || v.Version != 3 || fired == (v.Title == "cancelled") {
			t.Errorf("title %q, tags %v, version %d, %v: want either fired or cancelled", v.Title, v.Tags, v.Version, err)
		}
	}
}

// A timer that fails is tried again later, and harms no other: neither one whose decision
// fails nor one whose row the database refuses.
func TestTimerThatFailsIsPostponed(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 4)
	videos := store.NewVideos(pool, nil)
	timers := videos.Timers(func(v domain.Video, name string, stamp domain.Stamp) (*domain.Event, error) {
		e, err := ring(v, name, stamp)
		if name == "refused" {
			e.Video.State = "unknown to the database"
		}
		return e, err
	}, realStamp)
	ids := newVideos(t, videos, 3)
	at(t, videos, ids[0], domain.Timer{Name: "broken", After: now})
	at(t, videos, ids[1], domain.Timer{Name: "good", After: now})
	fired, err := timers.Fire(t.Context(), 10)
	if err != nil || len(fired.Late) != 1 || len(fired.Failed) != 1 || !errors.Is(fired.Failed[0], errNotNow) {
		t.Errorf("Fire() = %+v, %v, want one fired and %v", fired, err, errNotNow)
	}
	if n := count(t, pool, "SELECT attempts FROM video_catalog.timers WHERE name = 'broken' AND last_error = 'not now' AND due_at > now()"); n != 1 {
		t.Errorf("the timer that failed has %d attempts, want 1", n)
	}

	at(t, videos, ids[2], domain.Timer{Name: "refused", After: now})
	at(t, videos, ids[1], domain.Timer{Name: "good", After: now})
	fired, err = timers.Fire(t.Context(), 10)
	if err != nil || len(fired.Late) != 1 || len(fired.Failed) != 1 {
		t.Errorf("Fire() of two, of which the database refuses one = %+v, %v, want the other fired", fired, err)
	}
	if n := count(t, pool, "SELECT count(*) FROM video_catalog.timers WHERE attempts = 1 AND due_at > now()"); n != 2 {
		t.Errorf("%d timers are postponed, want 2", n)
	}
}

// A panic is a failure of its timer. A refusal by the rules is none: the timer has done nothing.
// An event cannot have a timer twice. A purge deletes the timers.
func TestTimerAndItsAggregate(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 4)
	videos := store.NewVideos(pool, nil)
	ids := newVideos(t, videos, 3)
	at(t, videos, ids[0], domain.Timer{Name: "panic", After: now})
	at(t, videos, ids[1], domain.Timer{Name: "x", After: now})
	fired, err := videos.Timers(ring, realStamp).Fire(t.Context(), 10)
	if err != nil || len(fired.Late) != 1 || len(fired.Failed) != 1 || !strings.Contains(fired.Failed[0].Error(), "panic: of an alarm") {
		t.Errorf("Fire() = %+v, %v, want one fired and one failed by its panic", fired, err)
	}
	refuse := videos.Timers(func(v domain.Video, _ string, stamp domain.Stamp) (*domain.Event, error) {
		return domain.Undelete(domain.AnyVersion, stamp)(v) // it is not deleted
	}, realStamp)
	at(t, videos, ids[1], domain.Timer{Name: "x", After: now})
	if fired, err := refuse.Fire(t.Context(), 10); err != nil || len(fired.Late) != 1 || len(fired.Failed) != 0 {
		t.Errorf("Fire() that the rules refuse = %+v, %v, want it fired without an event", fired, err)
	}
	if _, err := videos.ChangeVideo(t.Context(), ids[2], rename("twice", domain.Timer{Name: "x", After: now}, domain.Timer{Name: "x"})); err == nil || errors.Is(err, envelope.ErrUnavailable) {
		t.Errorf("an event with a timer twice = %v, want an error", err)
	}
	for _, decide := range []domain.Decision{domain.Delete(false, domain.AnyVersion, stamp(t)), domain.Purge(domain.AnyVersion, stamp(t))} {
		if _, err := videos.ChangeVideo(t.Context(), ids[0], decide); err != nil {
			t.Fatal(err)
		}
	}
	if n := waiting(t, refuse); n != 0 {
		t.Errorf("%d timers wait, want none after the purge", n)
	}
}

// Timers of more locked aggregates than a batch has hold up no other.
func TestTimersBehindManyLocks(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 4)
	videos := store.NewVideos(pool, nil)
	timers := videos.Timers(ring, realStamp)
	ids := newVideos(t, videos, 12)
	for _, id := range ids {
		at(t, videos, id, domain.Timer{Name: "x", After: now})
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is only a lock
	if _, err := tx.Exec(t.Context(), "SELECT FROM video_catalog.videos WHERE id = ANY ($1) FOR UPDATE", ids[:11]); err != nil {
		t.Fatal(err)
	}
	fired, err := timers.Fire(t.Context(), 5)
	if err != nil || len(fired.Late) != 1 {
		t.Errorf("Fire() = %+v, %v, want the last timer, which nobody has locked", fired, err)
	}
}

// A locked aggregate holds up no timer of another one.
func TestTimersDoNotWaitForLocks(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 4)
	videos := store.NewVideos(pool, nil)
	timers := videos.Timers(ring, realStamp)
	ids := newVideos(t, videos, 2)
	for _, id := range ids {
		at(t, videos, id, domain.Timer{Name: "x", After: now})
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is only a lock
	if _, err := tx.Exec(t.Context(), "SELECT FROM video_catalog.videos WHERE id = $1 FOR UPDATE", ids[0]); err != nil {
		t.Fatal(err)
	}
	fired, err := timers.Fire(t.Context(), 10)
	if err != nil || len(fired.Late) != 1 {
		t.Errorf("Fire() = %+v, %v, want the timer of the other video", fired, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if fired, err := timers.Fire(t.Context(), 10); err != nil || len(fired.Late) != 1 {
		t.Errorf("Fire() = %+v, %v, want the timer that was left out", fired, err)
	}
}
