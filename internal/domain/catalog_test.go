package domain_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
)

// An entry shows what people may see of a video: visible is what is published
// and not deleted.
func TestEntryOfVideo(t *testing.T) {
	for _, test := range []struct {
		name             string
		video            domain.Video
		visible, deleted bool
	}{
		{"draft", draft(), false, false},
		{"published", published(), true, false},
		{"deleted draft", deleted(draft()), false, true},
		{"deleted, was published", deleted(published()), false, true},
		{"purged", purged(), false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := domain.Entry{
				VideoID: test.video.ID, Details: test.video.Details, Visible: test.visible, Deleted: test.deleted,
				Version: 3, PublishTime: test.video.PublishTime, UpdateTime: updateTime,
			}
			if diff := cmp.Diff(want, domain.EntryOf(test.video)); diff != "" {
				t.Errorf("entry (-want +got):\n%s", diff)
			}
		})
	}
}

// Only an event newer than the entry changes it, and then it is all that
// counts; a tombstone is an entry like any other.
func TestFold(t *testing.T) {
	// of is the event that made a video the given version.
	of := func(v domain.Video, version int64) domain.Event {
		v.Version = version
		return domain.Event{ID: eventID, Type: domain.VideoUpdated, Video: v, OccurredAt: now}
	}
	// at is the entry of a video at the given version.
	at := func(v domain.Video, version int64) domain.Entry {
		entry := domain.EntryOf(of(v, version).Video)
		entry.EventID = eventID
		return entry
	}
	by := func(entry domain.Entry, id uuid.UUID) domain.Entry {
		entry.EventID = id
		return entry
	}
	other := func(e domain.Event, id uuid.UUID) domain.Event {
		e.ID = id
		return e
	}
	later := eventID
	later[0]++
	renamed := with(published(), func(v *domain.Video) { v.Title, v.UpdateTime = "Kagemusha", now })
	snapshot := domain.SnapshotID([10]byte{1})
	unknown := of(renamed, 4)
	unknown.Type = "" // of a newer build: the state it carries means the same
	for _, test := range []struct {
		name  string
		entry domain.Entry
		event domain.Event
		want  domain.Entry
		is    domain.Outcome
	}{
		{"first event", domain.Entry{}, of(draft(), 1), at(draft(), 1), domain.Applied},
		{"next event", at(published(), 3), of(renamed, 4), at(renamed, 4), domain.Applied},
		{"next event of an unknown type", at(published(), 3), unknown, at(renamed, 4), domain.Applied},
		{"nothing seen, but not the first", domain.Entry{}, of(published(), 2), at(published(), 2), domain.AppliedAfterGap},
		{"one missing", at(draft(), 3), of(renamed, 5), at(renamed, 5), domain.AppliedAfterGap},
		{"the same version", at(published(), 3), of(renamed, 3), at(published(), 3), domain.Stale},
		{"the same version after a repair", by(at(published(), 3), uuid.Nil), of(renamed, 3), by(at(published(), 3), uuid.Nil), domain.Stale},
		{"the same version of a later event", at(published(), 3), other(of(renamed, 3), later), by(at(renamed, 3), later), domain.Conflict},
		{"the same version of an earlier event", by(at(published(), 3), later), of(renamed, 3), by(at(published(), 3), later), domain.Conflict},
		{"an older version", at(published(), 3), of(renamed, 2), at(published(), 3), domain.Stale},
		{"a deletion", at(published(), 3), of(deleted(published()), 4), at(deleted(published()), 4), domain.Applied},
		{"late for a tombstone", at(deleted(published()), 4), of(published(), 3), at(deleted(published()), 4), domain.Stale},
		{"a purge", at(deleted(published()), 4), of(purged(), 5), at(purged(), 5), domain.Applied},
		{"a purge that has erased events before it", at(draft(), 1), of(purged(), 5), at(purged(), 5), domain.Applied},
		{"late for a purged one", at(purged(), 5), of(published(), 4), at(purged(), 5), domain.Stale},
		{"a first snapshot", domain.Entry{}, other(of(renamed, 5), snapshot), by(at(renamed, 5), snapshot), domain.Applied},
		{"a snapshot of what was missed", at(published(), 3), other(of(renamed, 5), snapshot), by(at(renamed, 5), snapshot), domain.Applied},
		{"a snapshot of the same version", at(published(), 3), other(of(renamed, 3), snapshot), at(published(), 3), domain.Stale},
		{"a snapshot of an older version", at(published(), 3), other(of(renamed, 2), snapshot), at(published(), 3), domain.Stale},
		{"the event of a snapshot", by(at(published(), 3), snapshot), of(renamed, 3), by(at(published(), 3), snapshot), domain.Stale},
		{"the event behind a snapshot", by(at(published(), 3), snapshot), of(renamed, 4), at(renamed, 4), domain.Applied},
		{"one missing behind a snapshot", by(at(published(), 3), snapshot), of(renamed, 5), at(renamed, 5), domain.AppliedAfterGap},
		{"brought back", at(deleted(published()), 4), of(published(), 5), at(published(), 5), domain.Applied},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, is := domain.Fold(test.entry, test.event)
			if is != test.is {
				t.Errorf("outcome = %d, want %d", is, test.is)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("entry (-want +got):\n%s", diff)
			}
		})
	}
}

// All events in order lead to the entry of the video as it is.
func TestFoldInOrderEndsAtTheVideo(t *testing.T) {
	for seed := range uint64(300) {
		events := history(t, seed)
		var entry domain.Entry
		for _, e := range events {
			var is domain.Outcome
			if entry, is = domain.Fold(entry, e); is != domain.Applied {
				t.Errorf("seed %d: outcome of version %d = %d, want %d", seed, e.Video.Version, is, domain.Applied)
			}
		}
		want := domain.EntryOf(events[len(events)-1].Video)
		want.EventID = events[len(events)-1].ID
		if diff := cmp.Diff(want, entry); diff != "" {
			t.Errorf("seed %d: entry (-want +got):\n%s", seed, diff)
		}
	}
}

// Whichever of the events come, in whatever order and however often: the
// newest of them is what the entry shows, at every moment.
func TestFoldInAnyOrderEndsAtTheNewest(t *testing.T) {
	for seed := range uint64(300) {
		events := history(t, seed)
		random := rand.New(rand.NewPCG(seed, 2))
		deliveries := make([]domain.Event, 1+random.IntN(2*len(events)))
		for i := range deliveries {
			deliveries[i] = events[random.IntN(len(events))]
		}
		var entry domain.Entry
		var newest domain.Event
		for i, e := range deliveries {
			want := domain.Stale
			switch {
			case e.Video.Version == newest.Video.Version+1, e.Video.Version > newest.Video.Version && e.Video.Purged():
				want = domain.Applied
			case e.Video.Version > newest.Video.Version:
				want = domain.AppliedAfterGap
			}
			if want != domain.Stale {
				newest = e
			}
			var got domain.Outcome
			entry, got = domain.Fold(entry, e)
			if got != want {
				t.Errorf("seed %d: outcome of delivery %d = %d, want %d", seed, i, got, want)
			}
			wantEntry := domain.EntryOf(newest.Video)
			wantEntry.EventID = newest.ID
			if diff := cmp.Diff(wantEntry, entry); diff != "" {
				t.Fatalf("seed %d: entry after delivery %d (-want +got):\n%s", seed, i, diff)
			}
		}
	}
}

// The events of a deleted video leave a tombstone, whatever comes late.
func TestTombstoneKeepsLateEventsOut(t *testing.T) {
	last := deleted(published())
	entry, _ := domain.Fold(domain.Entry{}, domain.Event{Video: with(last, func(v *domain.Video) { v.Version = 9 })})
	for version := range int64(10) {
		late := with(published(), func(v *domain.Video) { v.Version, v.UpdateTime = version, now.Add(time.Hour) })
		got, is := domain.Fold(entry, domain.Event{Video: late})
		if is != domain.Stale || !got.Deleted || got.Visible || got.Version != 9 {
			t.Errorf("Fold() of version %d = %+v, %d, want the tombstone, stale", version, got, is)
		}
	}
}
