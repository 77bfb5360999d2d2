package reactions

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
)

// review is an event of another service, about some videos.
type review struct {
	text   string
	videos []uuid.UUID
	title  string // replaces the title instead, if it is set
}

var errUnreadable = errors.New("unreadable")

// addReview adds the text of each review to a video as a tag, or creates the video. Special texts
// cause no event, or an error.
func addReview(videos clips) reaction[review, domain.Video, fact] {
	return reaction[review, domain.Video, fact]{videos, func(r review) []uuid.UUID { return r.videos }, func(v domain.Video, r review, stamp domain.Stamp) (*fact, error) {
		switch {
		case r.text == "nothing":
			return nil, nil
		case r.text == "unreadable":
			return nil, errUnreadable
		case r.title != "":
			return retitled(v, r.title, stamp)
		case v.Version == 0:
			return of(domain.CreateVideo(r.videos[0], domain.VideoDetails{Title: r.text}, stamp))
		}
		return tagged(v, r.text, stamp)
	}}
}

func reviewed(t testing.TB, text string, videos ...uuid.UUID) received[review] {
	t.Helper()
	return received[review]{Message: envelope.Message{ID: newID(t), Type: "ReviewWritten"}, Event: review{text: text, videos: videos}}
}

// A video reacts to an event once, even if the event comes again or beside others. The new
// event has the first as its cause, and its trace. Some transactions are interrupted.
func TestReactionTakesEffectOnce(t *testing.T) {
	t.Parallel()
	pool, videos, ids := stored(t, 8, 5)
	react := addReview(videos).react
	const each = 20
	var events []received[review]
	for n := range each {
		for i, id := range ids {
			other := ids[(i+1)%len(ids)]
			r := reviewed(t, strings.Repeat("x", n+1), id, other)
			r.Message.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
			events = append(events, r)
		}
	}
	var consumers sync.WaitGroup
	for range 6 {
		consumers.Go(func() {
			for range 30 {
				batch := make([]received[review], 1+rand.N(20))
				for i := range batch {
					batch[i] = events[rand.N(len(events))]
				}
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
				_, _ = react(ctx, "reviews", batch)
				cancel()
			}
		})
	}
	consumers.Wait()
	for batch := range slices.Chunk(events, 7) {
		_, err := react(t.Context(), "reviews", batch)
		must(t, err)
	}
	for _, id := range ids {
		v, err := videos.GetVideo(t.Context(), id)
		must(t, err)
		tags := slices.Sorted(slices.Values(v.Tags))
		if v.Version != 1+2*each || len(tags) != 2*each || len(slices.Compact(tags)) != each {
			t.Errorf("version %d with tags %v, want one change for each of %d events", v.Version, v.Tags, 2*each)
		}
	}
	if n := pgtest.Count(t, pool, `SELECT count(*) FROM video_catalog.outbox WHERE causation_id IS NOT NULL AND correlation_id = causation_id AND caller = 'reaction reviews'
		AND traceparent LIKE '00-0af7651916cd43dd8448eb211c80319c%'`); n != 2*each*len(ids) {
		t.Errorf("%d events have the cause and the trace, want %d", n, 2*each*len(ids))
	}
	outcomes, err := react(t.Context(), "reviews", events[:3])
	if want := slices.Repeat([]envelope.Outcome{envelope.Duplicate}, 3); err != nil || !cmp.Equal(want, outcomes) {
		t.Errorf("react() to known events = %v, %v, want %v", outcomes, err, want)
	}
}

// An event that cannot be handled leaves nothing of its batch behind.
func TestReactionIsOneTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	commits := 0
	videos := newClips(pool, func() { commits++ })
	react := addReview(videos).react
	ids := someClips(t, videos, 1)
	commits = 0
	good, bad := reviewed(t, "good", ids[0]), reviewed(t, "unreadable", ids[0])
	if _, err := react(t.Context(), "reviews", []received[review]{good, bad}); !errors.Is(err, errUnreadable) || errors.Is(err, envelope.ErrUnavailable) {
		t.Errorf("react() = %v, want %v", err, errUnreadable)
	}
	pgtest.WantCount(t, pool, 0, "rows that are left of a batch that was refused", "SELECT (SELECT count(*) FROM video_catalog.inbox) + (SELECT count(*) FROM video_catalog.outbox WHERE version > 1)")
	good.Event.videos = append(good.Event.videos, ids[0]) // twice
	outcomes, err := react(t.Context(), "reviews", []received[review]{good, good, reviewed(t, "nothing", ids[0])})
	if want := []envelope.Outcome{envelope.Applied, envelope.Duplicate, envelope.Applied}; err != nil || !cmp.Equal(want, outcomes) {
		t.Errorf("react() = %v, %v, want %v", outcomes, err, want)
	}
	if v, err := videos.GetVideo(t.Context(), ids[0]); err != nil || v.Version != 2 {
		t.Errorf("version = %d, %v, want 2", v.Version, err)
	}
	if commits != 1 {
		t.Errorf("%d wake-ups of the publisher, want 1", commits)
	}
}

// A decision that makes anything but the next event of its aggregate is an error. The error
// Unavailable is no refusal: the event comes again. It also comes again while the database does
// not work.
func TestReactionThatFailsIsNotHandled(t *testing.T) {
	t.Parallel()
	pool, videos, ids := stored(t, 2, 2)
	react := func(decide func(v domain.Video, stamp domain.Stamp) (*fact, error)) error {
		reaction := addReview(videos)
		reaction.decide = func(v domain.Video, _ review, stamp domain.Stamp) (*fact, error) { return decide(v, stamp) }
		_, err := reaction.react(t.Context(), "reviews", []received[review]{reviewed(t, "x", ids[0])})
		return err
	}
	rename := func(change func(*domain.Video)) func(domain.Video, domain.Stamp) (*fact, error) {
		return func(v domain.Video, stamp domain.Stamp) (*fact, error) {
			e, err := retitled(v, "x", stamp)
			if e != nil {
				change(&e.Video)
			}
			return e, err
		}
	}
	for name, change := range map[string]func(*domain.Video){
		"the event of another video": func(v *domain.Video) { v.ID = ids[1] },
		"a later version":            func(v *domain.Video) { v.Version++ },
	} {
		if err := react(rename(change)); err == nil || errors.Is(err, envelope.ErrUnavailable) || !strings.Contains(err.Error(), "decision on version 1 of "+ids[0].String()) {
			t.Errorf("react() with %s = %v, want an error of the decision", name, err)
		}
	}
	if err := react(func(domain.Video, domain.Stamp) (*fact, error) {
		return nil, problem.Errorf(problem.Unavailable, "not now")
	}); !errors.Is(err, envelope.ErrUnavailable) {
		t.Errorf("react() = %v, want Unavailable", err)
	}
	for _, table := range []string{"inbox", "outbox_pending"} { // the first statement, and the last
		pgtest.Execute(t, pool, "ALTER TABLE video_catalog."+table+" RENAME TO gone")
		if err := react(rename(func(*domain.Video) {})); !errors.Is(err, envelope.ErrUnavailable) {
			t.Errorf("react() without %s = %v, want Unavailable", table, err)
		}
		pgtest.Execute(t, pool, "ALTER TABLE video_catalog.gone RENAME TO "+table)
	}
	pgtest.WantCount(t, pool, 0, "rows that are left of what was not handled", "SELECT (SELECT count(*) FROM video_catalog.inbox) + (SELECT count(*) FROM video_catalog.outbox WHERE version > 1)")
}

// The correlation id of each event of a chain of causes is the id of the first event. A
// snapshot causes nothing. A reaction may create the aggregate.
func TestReactionContinuesTheChain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	videos := newClips(pool, nil)
	react := addReview(videos).react
	id, first := newID(t), newID(t)
	r := reviewed(t, "Kagemusha", id)
	r.Message.Causation = envelope.Causation{CausationID: newID(t), CorrelationID: first}
	snapshot := reviewed(t, "nothing", id)
	snapshot.Message.Repeat = envelope.RepeatSnapshot
	outcomes, err := react(t.Context(), "reviews", []received[review]{snapshot, r})
	if want := []envelope.Outcome{envelope.Stale, envelope.Applied}; err != nil || !cmp.Equal(want, outcomes) {
		t.Errorf("react() = %v, %v, want %v", outcomes, err, want)
	}
	if v, err := videos.GetVideo(t.Context(), id); err != nil || v.Title != "Kagemusha" || v.Version != 1 {
		t.Errorf("video = %+v, %v, want the first version", v, err)
	}
	claim, err := pg.NewOutbox(pool).ClaimEvents(t.Context(), outbox.Limits{Lanes: 1, Events: 10, Bytes: 1 << 20, Lease: time.Minute})
	if err != nil || len(claim.Events) != 1 {
		t.Fatalf("ClaimEvents() = %+v, %v, want one event", claim, err)
	}
	if got, want := claim.Events[0].Causation, (envelope.Causation{CausationID: r.Message.ID, CorrelationID: first}); got != want {
		t.Errorf("causation = %v, want %v", got, want)
	}
	read, err := envelope.Parse(claim.Events[0].Attributes(), nil)
	if err != nil || read.Causation != claim.Events[0].Causation {
		t.Errorf("causation in the next service = %v, %v, want %v", read.Causation, err, claim.Events[0].Causation)
	}
}

// A call prunes only ids of the inbox that are old enough, and at most maxRows.
func TestReactionsArePruned(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	videos := newClips(pool, nil)
	react := addReview(videos).react
	old, older, young := reviewed(t, "nothing"), reviewed(t, "nothing"), reviewed(t, "nothing")
	old.Message.ID = uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1003")
	older.Message.ID = uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1002")
	all := []received[review]{old, older, young}
	for _, consumer := range []string{"reviews", "another"} {
		_, err := react(t.Context(), consumer, all)
		must(t, err)
	}
	pgtest.Execute(t, pool, "UPDATE video_catalog.inbox SET received_at = now() - interval '2 days'")
	for _, want := range []int64{1, 1, 0} { // the two events that also happened long ago
		if n, err := prune(t.Context(), pool, "reviews", 24*time.Hour, 1); err != nil || n != want {
			t.Errorf("prune() = %d, %v, want %d", n, err, want)
		}
	}
	for consumer, want := range map[string][]envelope.Outcome{
		"reviews": {envelope.Applied, envelope.Applied, envelope.Duplicate}, "another": slices.Repeat([]envelope.Outcome{envelope.Duplicate}, 3),
	} {
		if outcomes, err := react(t.Context(), consumer, all); err != nil || !cmp.Equal(want, outcomes) {
			t.Errorf("react() of %s = %v, %v, want %v", consumer, outcomes, err, want)
		}
	}
}
