package store_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/console"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// The timeline has when an event was applied, also after a seek, and with the name of the
// consumer.
func TestAppliedFollowsASeek(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	inbox, catalog := store.NewInbox(pool), store.NewCatalog(pool)
	e := life(t, "Ran", 1)[0]
	for seeks := range 2 {
		project(t, catalog, "catalog", e)
		events := []console.Event{{ID: e.ID}, {ID: uuid.New()}}
		if err := inbox.Applied(t.Context(), []string{"catalog", "other"}, events); err != nil {
			t.Fatal(err)
		}
		if got := events[0].Applied; len(got) != 1 || got[0].Consumer != "catalog" || len(events[1].Applied) != 0 {
			t.Errorf("after %d seeks: applied = %+v, want by the catalog once", seeks, events)
		}
		execute(t, pool, "DELETE FROM video_catalog_read.inbox") // as a seek does
	}
}

// The timeline has the caller of a command, whatever the name, and the causes of other events:
// of one that is in another service, only the id.
func TestEventsHaveCallerAndCause(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	videos := store.NewVideos(pool, nil)
	const caller = "ann\x00@example.com" // the issuer could write that
	created := life(t, "Ran", 1)[0]
	if _, err := videos.CreateVideo(envelope.WithCaller(t.Context(), caller), uuid.Nil, nil, &created); err != nil {
		t.Fatal(err)
	}
	id := created.Video.ID
	foreign, local := reviewed(t, "good", id), reviewed(t, "better", id)
	local.Message.ID, local.Message.Cause = created.ID, envelope.Cause{CausationID: newID(t), CorrelationID: foreign.Message.ID}
	for _, r := range []envelope.Received[review]{foreign, local} {
		if _, err := store.ReactVideos(videos, addReview(), realStamp)(t.Context(), "reviews", []envelope.Received[review]{r}); err != nil {
			t.Fatal(err)
		}
	}
	aggregate := envelope.Aggregate{Type: "video", ID: id.String()}
	h, err := store.NewOutbox(pool).Events(t.Context(), aggregate, time.Unix(0, 0), time.Now().Add(time.Hour))
	if err != nil || len(h.Events) != 3 {
		t.Fatalf("Events() = %+v, %v, want three", h, err)
	}
	type why struct {
		Caller       string
		Cause, First *console.Cause
	}
	elsewhere := console.Cause{EventID: foreign.Message.ID}
	want := []why{ // the newest first
		{Cause: &console.Cause{Aggregate: aggregate, EventID: created.ID, Event: "VideoCreated"}, First: &elsewhere},
		{Cause: &elsewhere, First: &elsewhere},
		{Caller: caller},
	}
	for i, e := range h.Events {
		if diff := gocmp.Diff(want[i], why{e.Caller, e.Cause, e.First}); diff != "" {
			t.Errorf("version %d (-want +got):\n%s", e.Version, diff)
		}
	}
}

// state is like one that cmd/entity makes.
type state struct {
	Number                             int64
	Version                            int64
	CreateTime, UpdateTime, DeleteTime time.Time
}

// A type of one's own has all fields of both sides on the console, with the versions. What is
// deleted, or of another service, need not be on both.
func TestCompareStates(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 12, 0, 0, 1000, time.UTC)
	const number = 1<<60 + 1 // no float64
	alive := state{Number: number, Version: 2, CreateTime: at, UpdateTime: at.Add(time.Hour)}
	deleted := alive
	deleted.DeleteTime = at.Add(2 * time.Hour)
	fields := map[string]any{
		"Number": json.Number("1152921504606846977"), "Version": json.Number("2"), "CreateTime": "2026-01-31T12:00:00.000001Z", "UpdateTime": "2026-01-31T13:00:00.000001Z",
	}
	gone := maps.Clone(fields)
	gone["DeleteTime"] = "2026-01-31T14:00:00.000001Z"
	of := func(s *state, err error) func(context.Context, uuid.UUID) (state, error) {
		return func(context.Context, uuid.UUID) (state, error) {
			if s == nil {
				return state{}, cmp.Or[error](err, problem.Errorf(problem.NotFound, "not there"))
			}
			return *s, nil
		}
	}
	times := console.Comparison{Source: fields, SourceVersion: 2, Created: at, Updated: at.Add(time.Hour)}
	both, missing, tombstone := times, times, times
	both.Projection, both.ProjectionVersion = fields, 2
	tombstone.Source, tombstone.Alone = gone, "deleted, so the view does not show it"
	for name, test := range map[string]struct {
		source, view func(context.Context, uuid.UUID) (state, error)
		want         console.Comparison
	}{
		"on both sides":   {of(&alive, nil), of(&alive, nil), both},
		"not in the view": {of(&alive, nil), of(nil, nil), missing},
		"deleted":         {of(&deleted, nil), of(nil, nil), tombstone},
		"nowhere":         {of(nil, nil), of(nil, nil), console.Comparison{}},
		"not the owner":   {nil, of(&alive, nil), console.Comparison{Projection: fields, ProjectionVersion: 2, Alone: "the source is in another service"}},
	} {
		got, err := store.CompareStates(test.source, test.view)(t.Context(), uuid.NewString())
		if diff := gocmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	broken := errors.New("broken")
	if _, err := store.CompareStates(of(&alive, nil), of(nil, broken))(t.Context(), uuid.NewString()); !errors.Is(err, broken) {
		t.Errorf("a view that fails = %v, want its error", err)
	}
	if _, err := store.CompareStates(of(&alive, nil), of(&alive, nil))(t.Context(), "7"); err == nil || err.Error() != "id: must be a UUID" {
		t.Errorf("no id = %v, want it refused", err)
	}
}

// The timeline has when the command side reacted to an event.
func TestReactedIsOfTheCommandSide(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	r := reviewed(t, "nothing")
	if _, err := store.ReactVideos(store.NewVideos(pool, nil), addReview(), realStamp)(t.Context(), "reviews", []envelope.Received[review]{r}); err != nil {
		t.Fatal(err)
	}
	events := []console.Event{{ID: uuid.New()}, {ID: r.Message.ID}}
	if err := store.NewOutbox(pool).Reacted(t.Context(), []string{"catalog", "reviews"}, events); err != nil {
		t.Fatal(err)
	}
	if got := events[1].Applied; len(got) != 1 || got[0].Consumer != "reviews" || got[0].Time.IsZero() || len(events[0].Applied) != 0 {
		t.Errorf("reacted = %+v, want the second event once", events)
	}
}
