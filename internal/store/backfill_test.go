package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// owner is a command side whose events a test publishes by hand.
type owner struct {
	t      testing.TB
	pool   *pgxpool.Pool
	videos *store.Videos
	events *store.Outbox
}

func newOwner(t testing.TB) *owner {
	t.Helper()
	pool := storetest.Pool(t, 8)
	return &owner{t: t, pool: pool, videos: store.NewVideos(pool, nil), events: store.NewOutbox(pool)}
}

// create creates videos, each with some more versions.
func (o *owner) create(videos, versions int) (ids []uuid.UUID) {
	o.t.Helper()
	for range videos {
		e := created(o.t, "Ran")
		if _, err := o.videos.CreateVideo(o.t.Context(), uuid.Nil, nil, e); err != nil {
			o.t.Fatal(err)
		}
		for range versions - 1 {
			o.change(e.Video.ID)
		}
		ids = append(ids, e.Video.ID)
	}
	return ids
}

// change makes the next version of a video.
func (o *owner) change(id uuid.UUID) domain.Video {
	o.t.Helper()
	v, err := o.videos.ChangeVideo(o.t.Context(), id, func(v domain.Video) (*domain.Event, error) {
		return domain.Update([]domain.Field{domain.FieldTitle}, domain.Details{Title: fmt.Sprint("Ran ", v.Version+1)}, v.Version, stamp(o.t))(v)
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return v
}

// publish publishes everything that is pending and not blocked, and returns it in order.
func (o *owner) publish(refuse func(outbox.Claimed) bool) (sent []envelope.Message) {
	o.t.Helper()
	for {
		claim, err := o.events.ClaimEvents(o.t.Context(), 100, 1<<20, time.Hour, envelope.Aggregate{})
		if err != nil {
			o.t.Fatal(err)
		}
		if claim.Token == 0 {
			return sent
		}
		s := settlement(claim, refuse)
		for _, e := range claim.Events {
			if slices.Contains(s.Done, e.Seq) || slices.Contains(s.Retried, e.Seq) {
				sent = append(sent, e.Message)
			}
		}
		if held, err := o.events.SettleClaim(o.t.Context(), s); err != nil || !held {
			o.t.Fatalf("SettleClaim() = %t, %v", held, err)
		}
	}
}

func nothing(outbox.Claimed) bool { return false }

func (o *owner) backfill() (admin.Snapshots, admin.BackfillRequest) {
	o.t.Helper()
	items, err := o.events.Snapshots(event.AggregateVideo, []store.Aggregates{store.VideoAggregates(), {}})
	if err != nil {
		o.t.Fatal(err)
	}
	r := admin.BackfillRequest{Request: everything(), Pending: 100_000}
	r.Filter, r.All = admin.Filter{Type: event.AggregateVideo}, false
	return items, r
}

// check fails the test unless an action did that many items.
func (o *owner) check(what string, got admin.BackfillResult, err error, want int) {
	o.t.Helper()
	if err != nil || got.Matched != int64(want) || got.Done != int64(want) {
		o.t.Fatalf("%s = %+v, %v, want %d items", what, got, err, want)
	}
	if audited := count(o.t, o.pool, "SELECT coalesce(sum(items), 0)::int FROM video_catalog.audit WHERE action_id = $1", got.ActionID); audited != want {
		o.t.Errorf("%s: the audit has %d items, want %d", what, audited, want)
	}
}

// A backfill has the current state of every video, also of deleted ones, in the order of
// ids. A new consumer builds the right state from it alone, and one that has the state
// already does nothing.
func TestBackfill(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	catalog := store.NewCatalog(o.pool)
	ids := slices.Concat(o.create(1200, 1), o.create(5, 3))
	for _, id := range ids[:3] {
		if _, err := o.videos.ChangeVideo(t.Context(), id, domain.Delete(false, domain.AnyVersion, stamp(t))); err != nil {
			t.Fatal(err)
		}
	}
	o.apply(catalog, "old", o.publish(nothing), envelope.Applied)
	items, request := o.backfill()
	request.Pending = 499 // less than a page
	done := make(chan []envelope.Message)
	go func() { // the action waits until this has published
		var sent []envelope.Message
		for len(sent) < len(ids) {
			sent = append(sent, o.publish(nothing)...)
		}
		done <- sent
	}()
	var most int64
	request.Progress = func(int64, int64) {
		if n, err := o.events.CountPending(t.Context(), 10_000); err == nil {
			most = max(most, n)
		}
	}
	result, err := admin.Backfill(t.Context(), items, request)
	o.check("Backfill()", result, err, len(ids))
	sent := <-done
	if most > 499 {
		t.Errorf("%d events were pending, want at most 499", most)
	}
	slices.SortFunc(ids, compareIDs)
	if want := ids[len(ids)-1]; result.Last != want {
		t.Errorf("last id = %s, want %s", result.Last, want)
	}
	if got := count(t, o.pool, "SELECT count(*) FROM video_catalog.outbox WHERE event_type = 'Snapshot'"); got != 0 {
		t.Errorf("%d snapshots are in the outbox, want none: they are no events", got)
	}
	o.apply(catalog, "old", sent, envelope.Stale)
	o.apply(catalog, "old", sent, envelope.Duplicate)

	execute(t, o.pool, "TRUNCATE video_catalog_read.video_projection")
	o.apply(catalog, "new", sent, envelope.Applied)
	o.checkCatalog(catalog, ids)
	o.change(ids[len(ids)-1])
	o.apply(catalog, "new", o.publish(nothing), envelope.Applied)
	o.checkCatalog(catalog, ids)
}

// apply projects messages for a consumer, and wants one outcome of all.
func (o *owner) apply(catalog *store.Catalog, consumer string, messages []envelope.Message, want envelope.Outcome) {
	o.t.Helper()
	if len(messages) == 0 {
		o.t.Fatal("there are no messages")
	}
	for page := range slices.Chunk(messages, 100) {
		var events []domain.Event
		for _, m := range page {
			e, err := event.Decode(m)
			if err != nil {
				o.t.Fatal(err)
			}
			events = append(events, e)
		}
		for i, got := range project(o.t, catalog, consumer, events...) {
			if got != want {
				o.t.Fatalf("outcome of version %d of %s = %s, want %s", page[i].Version, page[i].AggregateID, got, want)
			}
		}
	}
}

// checkCatalog compares the entries of videos with their owner.
func (o *owner) checkCatalog(catalog *store.Catalog, ids []uuid.UUID) {
	o.t.Helper()
	for _, id := range ids {
		v, err := o.videos.GetVideo(o.t.Context(), id)
		if err != nil {
			o.t.Fatal(err)
		}
		checkEntry(o.t, catalog, domain.Event{Video: v})
	}
}

// While a command holds an aggregate, a snapshot does not get in front of its event. Otherwise
// a claim could miss what is set aside: see AppendOutbox.
func TestBackfillWaitsForTheCommand(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	ids := o.create(2, 2)
	o.publish(nothing)
	result := make(chan error, 1)
	_, err := o.videos.ChangeVideo(t.Context(), ids[0], func(v domain.Video) (*domain.Event, error) { // under the lock
		go func() {
			items, request := o.backfill()
			_, err := admin.Backfill(t.Context(), items, request)
			result <- err
		}()
		o.waitsForLock()
		return domain.Update([]domain.Field{domain.FieldTitle}, domain.Details{Title: "Kagemusha"}, v.Version, stamp(t))(v)
	})
	if err := errors.Join(err, <-result); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range o.publish(nothing) {
		if m.AggregateID == ids[0].String() {
			got = append(got, fmt.Sprint(m.Version, m.Repeat))
		}
	}
	if want := []string{"3", "3snapshot"}; !slices.Equal(got, want) {
		t.Errorf("published %q, want %q", got, want)
	}
}

// waitsForLock waits until a session waits for a row.
func (o *owner) waitsForLock() {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var waiting bool
		if err := o.pool.QueryRow(o.t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waiting); err == nil && waiting {
			return
		}
	}
	o.t.Error("no session waits for a lock")
}

// The snapshot of a blocked aggregate waits behind its events, and comes when the broker
// takes them. Others are not delayed.
func TestBackfillOfABlockedAggregate(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	ids := o.create(2, 2)
	o.publish(nothing)
	o.change(ids[0])
	blocked := func(e outbox.Claimed) bool { return e.AggregateID == ids[0].String() }
	if sent := o.publish(blocked); len(sent) != 0 {
		t.Fatalf("published %v of a blocked aggregate", sent)
	}
	snapshots, request := o.backfill()
	result, err := admin.Backfill(t.Context(), snapshots, request)
	o.check("Backfill()", result, err, 2)
	if sent := o.publish(blocked); len(sent) != 1 || slices.ContainsFunc(sent, func(m envelope.Message) bool { return m.AggregateID == ids[0].String() }) {
		t.Fatalf("published %v, want the snapshot of the other video", sent)
	}
	if n, err := o.events.CountPending(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("CountPending() = %d, %v, want none: those set aside delay nobody", n, err)
	}
	if _, err := admin.Requeue(t.Context(), o.events, everythingOf(ids[0])); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range o.publish(nothing) {
		got = append(got, fmt.Sprint(m.Version, m.Repeat))
	}
	if diff := cmp.Diff([]string{"3", "3snapshot"}, got); diff != "" {
		t.Errorf("published of the blocked aggregate (-want +got):\n%s", diff)
	}
}

func everythingOf(id uuid.UUID) admin.Request {
	r := everything()
	r.All, r.Filter = false, admin.Filter{Type: event.AggregateVideo, ID: id.String()}
	return r
}

// Snapshots of old states are no backlog that somebody must look at.
func TestSnapshotsHaveNoAge(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.create(2, 2)
	o.publish(nothing)
	items, request := o.backfill()
	result, err := admin.Backfill(t.Context(), items, request)
	o.check("Backfill()", result, err, 2)
	if got, err := o.events.Measure(t.Context(), 100); err != nil || got.Pending != 2 || !got.Oldest.IsZero() {
		t.Errorf("Measure() = %+v, %v, want 2 events without an age", got, err)
	}
	o.create(1, 1)
	if got, err := o.events.Measure(t.Context(), 100); err != nil || got.Pending != 3 || got.Oldest.IsZero() {
		t.Errorf("Measure() = %+v, %v, want the age of the event of a command", got, err)
	}
}

// A wrong request is refused with the field, and nothing is pending.
func TestBackfillRefusesWrongRequests(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.create(1, 1)
	o.publish(nothing)
	_, err := o.events.Snapshots("parcel", []store.Aggregates{store.VideoAggregates(), {}})
	if got, ok := errors.AsType[*problem.Error](err); !ok || got.Kind != problem.Invalid || got.Field != "type" || !strings.HasSuffix(got.Message, ": "+event.AggregateVideo) {
		t.Errorf("of a type that is not ours: %v, want the field type", err)
	}
	for _, test := range []struct {
		field  string
		change func(*admin.BackfillRequest)
	}{
		{"filter", func(r *admin.BackfillRequest) { r.Filter = admin.Filter{} }},
		{"all", func(r *admin.BackfillRequest) { r.All = true }},
		{"reason", func(r *admin.BackfillRequest) { r.Reason = "" }},
		{"pending", func(r *admin.BackfillRequest) { r.Pending = -1 }},
		{"pending", func(r *admin.BackfillRequest) { r.Pending = 100_001 }},
	} {
		items, request := o.backfill()
		test.change(&request)
		_, err := admin.Backfill(t.Context(), items, request)
		if got, ok := errors.AsType[*problem.Error](err); !ok || got.Kind != problem.Invalid || got.Field != test.field {
			t.Errorf("Backfill() = %v, want Invalid with the field %s", err, test.field)
		}
	}
	if got := count(t, o.pool, "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.audit)"); got != 0 {
		t.Errorf("%d rows are pending or in the audit, want none", got)
	}
}

// A projection of any aggregate type treats a snapshot as Fold does.
func TestProjectRowsTakesSnapshots(t *testing.T) {
	t.Parallel()
	inbox := store.NewInbox(storetest.Pool(t, 2))
	aggregate, first, second := newID(t), newID(t), newID(t)
	snapshot := func(n byte) uuid.UUID { return domain.SnapshotID([10]byte{n}) }
	var row store.Row
	for _, step := range []struct {
		event   uuid.UUID
		version int64
		want    envelope.Outcome
	}{
		{snapshot(1), 5, envelope.Applied},
		{first, 5, envelope.Stale},
		{snapshot(2), 5, envelope.Stale},
		{snapshot(3), 4, envelope.Stale},
		{second, 6, envelope.Applied},
		{snapshot(4), 6, envelope.Stale},
		{snapshot(5), 9, envelope.Applied},
		{newID(t), 11, envelope.AppliedAfterGap},
	} {
		e := store.Row{Aggregate: aggregate, Event: step.event, Version: step.version}
		got, err := store.ProjectRows(t.Context(), inbox, "test", []store.Row{e}, func(e store.Row) (store.Row, error) {
			before := row
			if e.Version > row.Version || e.Version == row.Version && bytes.Compare(e.Event[:], row.Event[:]) > 0 {
				row = e
			}
			return before, nil
		})
		if diff := cmp.Diff([]envelope.Outcome{step.want}, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("outcome of version %d by %s: %v (-want +got):\n%s", step.version, step.event, err, diff)
		}
	}
}
