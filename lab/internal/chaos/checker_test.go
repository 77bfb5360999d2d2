package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
)

// sound returns a correct history of two videos.
func sound() *History {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := &History{
		Publications: map[string]time.Time{},
		Limits:       Limits{Lease: time.Second, Takeover: 2 * time.Second, FirstResult: 2 * time.Second, Catalog: 3 * time.Second, Back: 4 * time.Second},
		Database:     Database{Projection: map[uuid.UUID]string{}, Catalog: map[uuid.UUID]Entry{}, Inbox: map[uuid.UUID]bool{}, Outbox: map[uuid.UUID]bool{}},
		Copies:       []*Copy{newCopy("w")},
	}
	for video := range 2 {
		id := uuid.UUID{0: byte(video) + 1}
		for version := range int64(3) {
			e := EventRow{ID: uuid.UUID{0: id[0], 1: byte(version) + 1}, Video: id, Version: version + 1, Type: typeUpdated, OccurredAt: at}
			e.Command = int64(len(h.Answers)) + 1
			e.State = digest(fmt.Sprint(e.ID))
			e.Content, e.Entry = e.State+1, e.State+2
			message := fmt.Sprint(len(h.Sightings) + 1)
			h.Database.Events = append(h.Database.Events, e)
			h.Database.Inbox[e.ID], h.Database.Outbox[e.ID] = true, true
			h.Answers = append(h.Answers, Answer{Command: e.Command, Outcome: Acknowledged, Video: id, Version: e.Version, State: e.State})
			h.Sightings = append(h.Sightings, Sighting{MessageID: message, Event: e.ID, Video: id, Version: e.Version, Content: e.Content})
			h.Publications[message] = at.Add(time.Millisecond)
			h.Acks = append(h.Acks, Ack{at.Add(time.Millisecond), at.Add(2 * time.Millisecond)})
		}
		last := h.Database.Events[len(h.Database.Events)-1]
		h.Database.Videos = append(h.Database.Videos, VideoRow{ID: id, Version: 3, State: last.State, Catalog: "row"})
		h.Database.Projection[id] = "row"
		h.Database.Catalog[id] = Entry{3, last.Entry}
		h.Copies[0].updated(id, Entry{3, last.Entry})
		h.Reads = append(h.Reads, Read{Video: id, Asked: 2, Shown: Entry{3, last.Entry}})
	}
	return h
}

// A minimal change of a correct history breaks one rule, or none. It breaks several
// only if that is unavoidable.
func TestCheckerRules(t *testing.T) {
	again := func(h *History, i int, after time.Duration) { // publishes message i again
		s := h.Sightings[i]
		h.Publications["again"] = h.Publications[s.MessageID].Add(after)
		s.MessageID = "again"
		h.Sightings = append(h.Sightings, s)
	}
	twice := func(h *History) { // publishes two messages again
		again(h, 1, time.Second)
		h.Sightings = append(h.Sightings, h.Sightings[2])
		h.Sightings[len(h.Sightings)-1].MessageID = "once more"
		h.Publications["once more"] = h.Publications["again"]
	}
	stall := func(h *History, mayRepeat int) { // for a second
		at := h.Publications["1"]
		h.Stalls = []Stall{{From: at, Until: at.Add(time.Second), MayRepeat: mayRepeat}}
	}
	strike := func(h *History, mayRepeat int) {
		at := h.Publications["1"]
		h.Faults = append(h.Faults, FaultRecord{Kind: "kill", Struck: at, Ended: at, MayRepeat: mayRepeat})
	}
	first := uuid.UUID{0: 1}
	purge := func(h *History) { // makes the last version of the first video a purge
		e := &h.Database.Events[2]
		e.Type, e.Command, e.Entry, e.Blank = typePurged, 0, 0, true
		h.Answers[2].Kind = kindPurge
		delete(h.Database.Outbox, h.Database.Events[0].ID)
		delete(h.Database.Outbox, h.Database.Events[1].ID)
		delete(h.Database.Catalog, first)
		h.Reads = h.Reads[1:]
		h.Copies[0] = newCopy("w")
		h.Copies[0].updated(uuid.UUID{0: 2}, h.Database.Catalog[uuid.UUID{0: 2}])
	}
	erased := func(h *History) { // the second version was not published when the video was purged
		purge(h)
		delete(h.Database.Inbox, h.Sightings[1].Event)
		delete(h.Publications, h.Sightings[1].MessageID)
		h.Sightings = slices.Delete(h.Sightings, 1, 2)
	}
	publication := func(h *History, a Answer) { // makes the last version of a video the result of a publish command
		h.Database.Events[2].Type = "VideoPublished"
		h.Answers[2].Kind = kindUpdate // it did not receive the result
		h.Answers[2].Version, h.Answers[2].State, h.Answers[2].Command = 2, h.Database.Events[1].State, h.Database.Events[1].Command
		a.Command, a.Kind, a.Video = 60, kindPublish, uuid.UUID{0: 1}
		if a.Since.IsZero() {
			a.Since = h.Publications["3"].Add(-time.Second)
		}
		if e := h.Database.Events[max(0, a.Version-1)]; a.Outcome == Acknowledged {
			a.State = e.State
		}
		h.Answers = append(h.Answers, a)
	}
	for _, tt := range []struct {
		name   string
		change func(h *History)
		want   []Rule
	}{
		{"nothing", func(*History) {}, nil},
		{"an answer of a version that is not there", func(h *History) { h.Answers[2].Version = 4 }, []Rule{CommandLost}},
		{"an answer of another state", func(h *History) { h.Answers[2].State++ }, []Rule{AnswerWrong}},
		{"an unknown outcome that took effect", func(h *History) { h.Answers[2].Outcome, h.Answers[2].Lost = Unknown, 1 }, nil},
		{"a failure that took effect", func(h *History) { h.Answers[2].Outcome = Failed }, []Rule{FailedTookEffect}},
		{"an update that was answered with what another one wrote", func(h *History) {
			h.Answers[2].Kind, h.Answers[2].Command = kindUpdate, 99
		}, []Rule{CommandLost}},
		{"a create that was answered with another video", func(h *History) {
			h.Answers[2].Kind = kindCreate
		}, []Rule{CommandLost}},
		{"a create that was repeated, and answered with a newer version", func(h *History) {
			h.Answers[2].Kind, h.Answers[2].Command = kindCreate, h.Database.Events[0].Command
		}, nil},
		{"an update that was answered with its own title after another's publication", func(h *History) {
			h.Answers[2].Kind, h.Answers[2].Lost, h.Answers[2].Command = kindUpdate, 1, h.Database.Events[1].Command
			h.Database.Events[2].Command, h.Database.Events[2].Type = h.Database.Events[1].Command, "VideoPublished"
			h.Answers = append(h.Answers, Answer{Command: 50, Kind: kindPublish, Outcome: Acknowledged, Video: uuid.UUID{0: 1}, Version: 3, State: h.Answers[2].State})
		}, nil},
		{"a publication that was answered", func(h *History) { publication(h, Answer{Outcome: Acknowledged, Version: 3}) }, nil},
		{"a publication whose answer was lost", func(h *History) { publication(h, Answer{Outcome: Unknown, Lost: 1}) }, nil},
		{"a publication before an attempt whose answer was lost", func(h *History) {
			publication(h, Answer{Outcome: Unknown, Lost: 1, Since: h.Publications["3"].Add(time.Millisecond)})
		}, []Rule{FailedTookEffect}},
		{"a publication long after an attempt whose answer was lost", func(h *History) {
			publication(h, Answer{Outcome: Unknown, Lost: 1, Since: h.Publications["3"].Add(-2 * explains)})
		}, []Rule{FailedTookEffect}},
		{"a second publication where one answer was lost", func(h *History) {
			publication(h, Answer{Outcome: Unknown, Lost: 1})
			h.Database.Events[1].Type = "VideoPublished"
		}, []Rule{FailedTookEffect}},
		{"a publication that was answered the second time", func(h *History) {
			publication(h, Answer{Outcome: Acknowledged, Version: 2, Lost: 1})
		}, nil},
		{"a publication that was refused", func(h *History) { publication(h, Answer{Outcome: Failed}) }, []Rule{FailedTookEffect}},
		{"a publication of another version", func(h *History) { publication(h, Answer{Outcome: Acknowledged, Version: 2}) }, []Rule{FailedTookEffect}},
		{"a publication that nobody asked for", func(h *History) { publication(h, Answer{Outcome: Acknowledged, Version: 3}); h.Answers = h.Answers[:6] }, []Rule{FailedTookEffect}},
		{"an internal error", func(h *History) { h.Odd = []Odd{{At: h.Publications["1"], Code: codes.Internal}} }, []Rule{CodeUnexpected}},
		{"an internal error while the database failed", func(h *History) {
			strike(h, 0)
			h.Faults[0].MayFail = true
			h.Odd = []Odd{{At: h.Publications["1"], Code: codes.Internal}}
		}, nil},
		{"no answer soon after a stall", func(h *History) {
			stall(h, 0)
			h.Odd = []Odd{{At: h.Publications["1"].Add(2 * time.Second), Code: codes.DeadlineExceeded}}
		}, nil},
		{"an internal error soon after a stall", func(h *History) {
			stall(h, 0)
			h.Odd = []Odd{{At: h.Publications["1"].Add(time.Second), Code: codes.Internal}}
		}, []Rule{CodeUnexpected}},
		{"no answer long after a stall", func(h *History) {
			stall(h, 0)
			h.Odd = []Odd{{At: h.Publications["1"].Add(time.Second + 2*attemptTimeout), Code: codes.DeadlineExceeded}}
		}, []Rule{CodeUnexpected}},
		{"an internal error while a publisher was killed", func(h *History) {
			strike(h, 0)
			h.Odd = []Odd{{At: h.Publications["1"], Code: codes.Internal}}
		}, []Rule{CodeUnexpected}},
		{"an internal error long after the database failed", func(h *History) {
			strike(h, 0)
			h.Faults[0].MayFail = true
			h.Odd = []Odd{{At: h.Publications["1"].Add(2 * attemptTimeout), Code: codes.Internal}}
		}, []Rule{CodeUnexpected}},
		{"an update that was answered with its own", func(h *History) { h.Answers[2].Kind = kindUpdate }, nil},
		{"an etag two versions ago", func(h *History) { h.Answers[2].Expected = 1 }, []Rule{EtagIgnored}},
		{"two updates of one command", func(h *History) { h.Database.Events[1].Command = h.Database.Events[2].Command }, []Rule{UpdatedTwice}},
		{"two updates of one command, of which an answer was lost", func(h *History) {
			h.Database.Events[1].Command = h.Database.Events[2].Command
			h.Answers[2].Lost = 1
		}, nil},
		{"two creates of one command", func(h *History) {
			for _, i := range []int{0, 3} {
				h.Database.Events[i].Type, h.Database.Events[i].Command = typeCreated, 1
			}
		}, []Rule{CreatedTwice}},
		{"a row ahead of its events", func(h *History) { h.Database.Videos[0].Version = 4 }, []Rule{RowWithoutEvent}},
		{"an event ahead of its row", func(h *History) { h.Database.Videos[0].Version = 2; h.Database.Videos[0].State = h.Answers[1].State }, []Rule{EventWithoutRow}},
		{"events without a row", func(h *History) {
			h.Database.Videos = h.Database.Videos[1:]
			delete(h.Database.Projection, uuid.UUID{0: 1})
		}, []Rule{EventWithoutRow}},
		{"a row of another state", func(h *History) { h.Database.Videos[0].State++ }, []Rule{RowDiffers}},
		{"a version twice", func(h *History) {
			h.Database.Events[1].Version, h.Sightings[1].Version = 1, 1
			h.Answers[1] = h.Answers[0]
		}, []Rule{OutOfOrder, RowWithoutEvent, VersionRepeated}},
		{"an event that was not published", func(h *History) { h.Sightings = h.Sightings[:5]; delete(h.Publications, "6") }, []Rule{EventLost}},
		{"an event that was published late", func(h *History) { h.Sightings[0], h.Sightings[1] = h.Sightings[1], h.Sightings[0] }, []Rule{OutOfOrder}},
		{"a message that was delivered twice", func(h *History) { h.Sightings = append(h.Sightings, h.Sightings[0]) }, nil},
		{"a message of other bytes", func(h *History) { h.Sightings[1].Content++ }, []Rule{MessageDiffers}},
		{"a message of no event", func(h *History) { h.Sightings[5].Event = uuid.UUID{9} }, []Rule{EventLost, UnknownMessage}},
		{"a duplicate without a fault", func(h *History) { again(h, 1, time.Second) }, []Rule{DuplicateUncaused}},
		{"two duplicates after a lone fault that may cause one, beside a stall that may cause one", func(h *History) {
			strike(h, 1)
			h.Faults[0].Alone, h.Faults[0].Struck = true, h.Faults[0].Struck.Add(1)
			h.Stalls = []Stall{{From: h.Faults[0].Struck, Until: h.Faults[0].Struck.Add(time.Second), MayRepeat: 1}}
			twice(h)
		}, nil},
		{"a duplicate after a stall", func(h *History) { stall(h, 1); again(h, 1, time.Second) }, nil},
		{"two duplicates after a stall that may cause one", func(h *History) { stall(h, 1); twice(h) }, []Rule{TooManyDuplicates}},
		{"a duplicate after a fault", func(h *History) { strike(h, 1); again(h, 1, time.Second) }, nil},
		{"a duplicate long after a fault", func(h *History) { strike(h, 1); again(h, 1, 4*time.Second) }, []Rule{DuplicateUncaused}},
		{"a message that nobody heard", func(h *History) { h.Publications["unheard"] = h.Publications["1"] }, []Rule{MessageUnheard}},
		{"a duplicate of something old after a fault", func(h *History) {
			again(h, 1, time.Hour)
			at := h.Publications["again"].Add(-time.Second)
			h.Faults = append(h.Faults, FaultRecord{Kind: "kill", Struck: at, Ended: at, MayRepeat: 200})
		}, []Rule{DuplicateUncaused}},
		{"a duplicate of a duplicate, each after a fault of its own", func(h *History) {
			for i := range 3 { // an event that is published again between two faults may be unsettled at the second
				at := h.Publications["2"].Add(time.Duration(i) * 2500 * time.Millisecond)
				h.Faults = append(h.Faults, FaultRecord{Kind: "kill", Struck: at, Ended: at, MayRepeat: 1})
				s := h.Sightings[1]
				s.MessageID = fmt.Sprint("again ", i)
				h.Publications[s.MessageID] = at.Add(2400 * time.Millisecond)
				h.Sightings = append(h.Sightings, s)
			}
		}, nil},
		{"a duplicate after a harmless fault", func(h *History) { strike(h, 0); again(h, 1, time.Second) }, []Rule{DuplicateUncaused}},
		{"two duplicates after a fault that may cause one", func(h *History) { strike(h, 1); twice(h) }, []Rule{TooManyDuplicates}},
		{"two duplicates after a lone fault that may cause one, and one after it that may cause many", func(h *History) {
			strike(h, 1)
			h.Faults[0].Alone, h.Faults[0].Struck = true, h.Faults[0].Struck.Add(1)
			twice(h)
			later := h.Publications["again"].Add(time.Second)
			h.Faults = append(h.Faults, FaultRecord{Kind: "kill", Struck: later, Ended: later, MayRepeat: 200})
		}, []Rule{TooManyDuplicates}},
		{"one duplicate after a lone fault that may cause one, and one after the next", func(h *History) {
			strike(h, 1)
			h.Faults[0].Alone, h.Faults[0].Struck = true, h.Faults[0].Struck.Add(1)
			again(h, 1, time.Second)
			next := h.Publications["again"].Add(time.Millisecond)
			h.Faults = append(h.Faults, FaultRecord{Kind: "kill", Struck: next, Ended: next, MayRepeat: 1})
			h.Sightings = append(h.Sightings, h.Sightings[2])
			h.Sightings[len(h.Sightings)-1].MessageID = "once more"
			h.Publications["once more"] = next
		}, nil},
		{"a duplicate of what was published first after a lone fault, which left nothing", func(h *History) {
			strike(h, 200)
			h.Faults[0].Struck = h.Faults[0].Struck.Add(-time.Second)
			again(h, 1, time.Second)
			before := h.Publications["1"].Add(-1)
			h.Faults = append(h.Faults, FaultRecord{Kind: "kill", Struck: before, Ended: before, Alone: true})
		}, nil},
		{"a projection that is behind", func(h *History) { h.Database.Projection[uuid.UUID{0: 1}] = "old row" }, []Rule{ProjectionDiffers}},
		{"a projection that lacks a row", func(h *History) { delete(h.Database.Projection, uuid.UUID{0: 1}) }, []Rule{ProjectionDiffers}},
		{"a projection with a row too many", func(h *History) { h.Database.Projection[uuid.UUID{9}] = "row" }, []Rule{ProjectionDiffers}},
		{"an event that nobody consumed", func(h *History) { delete(h.Database.Inbox, h.Database.Events[1].ID) }, []Rule{EventNotConsumed}},
		{"a pending event", func(h *History) { h.Database.Pending = 1 }, []Rule{StuckPending}},
		{"a blocked aggregate", func(h *History) { h.Database.Blocked = []string{"video"} }, []Rule{StuckBlocked}},
		{"a leased lane", func(h *History) { h.Database.Leased = []string{"lane 1"} }, []Rule{StuckLease}},
		{"a message in the quarantine", func(h *History) { h.Database.Quarantined = 1 }, []Rule{MessageQuarantined}},
		{"an entry as it was when nobody asked for more", func(h *History) {
			h.Reads[0] = Read{Video: uuid.UUID{0: 1}, Asked: 1, Shown: Entry{2, h.Database.Events[1].Entry}}
		}, nil},
		{"an entry older than asked for", func(h *History) {
			h.Reads[0] = Read{Video: uuid.UUID{0: 1}, Asked: 3, Shown: Entry{2, h.Database.Events[1].Entry}}
		}, []Rule{OwnWriteUnseen}},
		{"an entry of no version", func(h *History) { h.Reads[0].Shown.Version = 4 }, []Rule{EntryWrong}},
		{"an entry with another content", func(h *History) { h.Reads[0].Shown.Content++ }, []Rule{EntryWrong}},
		{"an entry of what is hidden", func(h *History) { h.Database.Events[2].Entry = 0 }, []Rule{EntryWrong}},
		{"no entry of what is hidden", func(h *History) {
			h.Database.Events[2].Entry = 0
			h.Copies[0].Told = nil
			h.Reads[0] = Read{At: h.Publications["3"], Video: uuid.UUID{0: 1}, Asked: 2, Hidden: true}
		}, nil},
		{"no entry of what is hidden later", func(h *History) {
			h.Database.Events[2].Entry = 0
			h.Reads[0] = Read{At: h.Publications["3"].Add(-1), Video: uuid.UUID{0: 1}, Asked: 2, Hidden: true}
		}, []Rule{EntryWrong}},
		{"no entry of what was hidden before", func(h *History) {
			h.Database.Events[0].Entry = 0
			h.Reads[0] = Read{At: h.Publications["3"], Video: uuid.UUID{0: 1}, Asked: 2, Hidden: true}
		}, []Rule{EntryWrong}},
		{"a watcher that missed the last change", func(h *History) { h.Copies[0].Entries[uuid.UUID{0: 1}] = Entry{2, 7} }, []Rule{WatchDiffers}},
		{"a watcher that missed an entry", func(h *History) { h.Copies[0].removed(uuid.UUID{0: 1}) }, []Rule{WatchDiffers}},
		{"a watcher that missed a removal", func(h *History) { h.Copies[0].Entries[uuid.UUID{9}] = Entry{1, 1} }, []Rule{WatchDiffers}},
		{"a watcher that was shown another content, and then this one", func(h *History) {
			last := h.Database.Catalog[uuid.UUID{0: 1}]
			h.Copies[0].updated(uuid.UUID{0: 1}, Entry{last.Version, last.Content + 1})
			h.Copies[0].updated(uuid.UUID{0: 1}, last)
		}, []Rule{EntryWrong}},
		{"a watcher that was shown a video that is not to be shown", func(h *History) {
			h.Copies[0].updated(uuid.UUID{9}, Entry{1, 1})
			h.Copies[0].removed(uuid.UUID{9})
		}, []Rule{EntryWrong}},
		{"a watcher that was told twice", func(h *History) {
			h.Copies[0].updated(uuid.UUID{0: 1}, h.Database.Catalog[uuid.UUID{0: 1}])
		}, nil},
		{"a watcher that was told something old", func(h *History) {
			h.Copies[0].updated(uuid.UUID{0: 1}, Entry{2, h.Database.Events[1].Entry})
			h.Copies[0].updated(uuid.UUID{0: 1}, h.Database.Catalog[uuid.UUID{0: 1}])
		}, []Rule{WatchWentBack}},
		{"a lane that a zombie settled", func(h *History) { h.Trespasses = []Trespass{{Who: "zombie", What: trespassSettled}} }, []Rule{LaneNotHeld}},
		{"a lane that was claimed twice", func(h *History) { h.Trespasses = []Trespass{{Who: "other", What: trespassTaken}} }, []Rule{LaneTaken}},
		{"an event that is gone from the outbox", func(h *History) { delete(h.Database.Outbox, h.Sightings[1].Event) }, []Rule{EventErased}},
		{"a purge", purge, nil},
		{"a purge that erased a pending event", erased, nil},
		{"a purge that left an event in the outbox", func(h *History) { purge(h); h.Database.Outbox[h.Sightings[1].Event] = true }, []Rule{AfterPurge}},
		{"a purge with content", func(h *History) { purge(h); h.Database.Events[2].Blank = false }, []Rule{AfterPurge}},
		{"a change after a purge", func(h *History) {
			purge(h)
			h.Database.Events[1].Type, h.Database.Events[1].Blank = typePurged, true
			h.Database.Events[2].Type, h.Answers[1].Kind, h.Answers[2].Kind = typeUpdated, kindPurge, ""
			h.Database.Outbox[h.Database.Events[1].ID] = true
		}, []Rule{AfterPurge}},
		{"an event that was published after the purge", func(h *History) {
			purge(h)
			h.Sightings[1], h.Sightings[2] = h.Sightings[2], h.Sightings[1]
		}, []Rule{AfterPurge}},
		{"an event that was published after the purge, and after a fault", func(h *History) {
			purge(h)
			strike(h, 1)
			h.Sightings[1], h.Sightings[2] = h.Sightings[2], h.Sightings[1]
		}, nil},
		{"a purged video that is not found", func(h *History) {
			purge(h)
			h.Odd = []Odd{{At: h.Publications["1"], Video: first, Code: codes.NotFound}}
		}, nil},
		{"another video that is not found", func(h *History) {
			purge(h)
			h.Odd = []Odd{{At: h.Publications["1"], Video: uuid.UUID{0: 2}, Code: codes.NotFound}}
		}, []Rule{CodeUnexpected}},

		{"an erasure that is left", func(h *History) { h.Database.Left = []string{"erasure of x"} }, []Rule{LeftOver}},
		{"a problem of the lab", func(h *History) { h.Problems = []Violation{{ConnectionLeaked, "one"}} }, []Rule{ConnectionLeaked}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := sound()
			tt.change(h)
			verdict := Check(h)
			if got := slices.Sorted(maps.Keys(verdict.Counts)); !slices.Equal(got, tt.want) {
				t.Errorf("broken rules: got %q, want %q; %v", got, tt.want, verdict.Violations)
			}
		})
	}
}

// Only faults that were alone are compared with targets. Each has the target of
// its kind.
func TestCheckerMeasuresRecovery(t *testing.T) {
	for _, tt := range []struct {
		name     string
		recovery Recovery
		alone    bool
		gap      time.Duration // time after the fault without a publication
		misses   int
	}{
		{"takeover in time", Takeover, true, 1900 * time.Millisecond, 0},
		{"takeover too late", Takeover, true, 2100 * time.Millisecond, 1},
		{"takeover beside another fault", Takeover, false, 2100 * time.Millisecond, 0},
		{"outage in time", Outage, true, 1900 * time.Millisecond, 0},
		{"outage too long", Outage, true, 2100 * time.Millisecond, 1},
		{"nothing to measure", NoRecovery, true, 2100 * time.Millisecond, 0},
		{"takeover after minutes", Takeover, true, 3 * time.Minute, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := sound()
			struck := h.Database.Events[0].OccurredAt
			h.Faults = []FaultRecord{{Kind: "fault", Struck: struck, Ended: struck, Recovery: tt.recovery, Alone: tt.alone}}
			for id := range h.Publications {
				h.Publications[id] = struck.Add(tt.gap)
			}
			verdict := Check(h)
			if len(verdict.Misses) != tt.misses || h.Faults[0].FirstPublish != tt.gap || h.Faults[0].Takeover != tt.gap {
				t.Errorf("misses %v, fault %+v, want %d and %s", verdict.Misses, h.Faults[0], tt.misses, tt.gap)
			}
		})
	}
}

// After an outage, the projectors must continue, too. If nothing is published,
// they cannot.
func TestCheckerMeasuresTheCatalog(t *testing.T) {
	for _, tt := range []struct {
		name             string
		recovery         Recovery
		published, acked time.Duration // first time after the fault; 0: never
		misses           []Recovery
	}{
		{"in time", Outage, time.Second, 2900 * time.Millisecond, nil},
		{"too late", Outage, time.Second, 3100 * time.Millisecond, []Recovery{Catalog}},
		{"never", Outage, time.Second, 0, []Recovery{Catalog}},
		{"nothing published", Outage, 0, 0, []Recovery{Outage}},
		{"both too late", Outage, 2100 * time.Millisecond, 3100 * time.Millisecond, []Recovery{Outage, Catalog}},
		{"no outage", NoRecovery, time.Second, 3100 * time.Millisecond, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := sound()
			ended := h.Database.Events[len(h.Database.Events)-1].OccurredAt.Add(time.Minute)
			h.Faults = []FaultRecord{{Kind: "down", Struck: ended, Ended: ended, Recovery: tt.recovery, Alone: true}}
			if tt.published > 0 {
				h.Publications["1"] = ended.Add(tt.published)
			}
			if tt.acked > 0 {
				h.Acks = append(h.Acks, Ack{ended.Add(-time.Second), ended.Add(time.Second)}, Ack{ended.Add(time.Second), ended.Add(tt.acked)})
			}
			verdict := Check(h)
			var got []Recovery
			for _, m := range verdict.Misses {
				got = append(got, m.Of)
			}
			if !slices.Equal(got, tt.misses) || h.Faults[0].FirstConsume != tt.acked {
				t.Errorf("misses %q, first ack after %s, want %q and %s", got, h.Faults[0].FirstConsume, tt.misses, tt.acked)
			}
		})
	}
}

// After each measured fault that was alone, every process must work again in
// time.
func TestCheckerMeasuresEveryProcess(t *testing.T) {
	for _, tt := range []struct {
		name     string
		recovery Recovery
		alone    bool
		back     time.Duration // 0: not within the limit
		measured int
		misses   int
	}{
		{"in time", Takeover, true, 3900 * time.Millisecond, 1, 0},
		{"too late", Takeover, true, 4100 * time.Millisecond, 1, 1},
		{"too late after an outage", Outage, true, 4100 * time.Millisecond, 1, 1},
		{"beside another fault", Takeover, false, 4100 * time.Millisecond, 0, 0},
		{"not seen", Takeover, true, 0, 0, 0},
		{"in time where nothing waits", Back, true, 3900 * time.Millisecond, 1, 0},
		{"too late where nothing waits", Back, true, 4100 * time.Millisecond, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := sound()
			struck := h.Database.Events[0].OccurredAt
			h.Faults = []FaultRecord{{Kind: "fault", Struck: struck, Ended: struck, Recovery: tt.recovery, Alone: tt.alone, Back: tt.back}}
			h.Acks = append(h.Acks, Ack{struck.Add(time.Millisecond), struck.Add(2 * time.Millisecond)})
			verdict := Check(h)
			f := verdict.Figures
			if f.Backs != tt.measured || f.OfBacks != 1 || len(verdict.Misses) != tt.misses || tt.misses > 0 && verdict.Misses[0].Of != Back {
				t.Errorf("measured %d of %d, misses %+v; want %d of 1 and %d misses", f.Backs, f.OfBacks, verdict.Misses, tt.measured, tt.misses)
			}
		})
	}
}

// If a process continues its work after a fault, only events that clients knew of
// count as waiting. Otherwise all events count.
func TestCheckerMeasuresWhoGoesOn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		goesOn bool
		told   time.Duration // time after the fault when the client received the result
		want   time.Duration
	}{
		{"told before", true, -time.Millisecond, 3 * time.Second},
		{"told after", true, time.Millisecond, 0},
		{"dies, told before", false, -time.Millisecond, 3 * time.Second},
		{"dies, told after", false, time.Millisecond, 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := sound()
			struck := h.Database.Events[0].OccurredAt
			h.Faults = []FaultRecord{{Kind: "freeze", Struck: struck, Ended: struck, Recovery: Takeover, Alone: true, GoesOn: tt.goesOn}}
			for i := range h.Answers {
				h.Answers[i].At = struck.Add(tt.told)
			}
			for id := range h.Publications {
				h.Publications[id] = struck.Add(3 * time.Second)
			}
			verdict := Check(h)
			if got := h.Faults[0].Takeover; got != tt.want || len(verdict.Misses) != int(tt.want/(3*time.Second)) {
				t.Errorf("takeover took %s, misses %v, want %s", got, verdict.Misses, tt.want)
			}
		})
	}
}

// A fault that was not alone is not measured. A fault without effect does not
// count, and need not be measured. A fault without a publication after it misses
// its target.
func TestCheckerSaysWhatItMeasured(t *testing.T) {
	h := sound()
	before, after := h.Database.Events[0].OccurredAt, h.Database.Events[0].OccurredAt.Add(time.Hour)
	fault := func(kind string, recovery Recovery, alone bool, at time.Time, missing string) {
		h.Faults = append(h.Faults, FaultRecord{Kind: kind, Recovery: recovery, Alone: alone, Struck: at, Ended: at, Missing: missing})
	}
	fault("kill", Takeover, true, before, "")
	fault("kill", Takeover, false, before, "")
	fault("kill at a point", Takeover, true, before, "point not reached")
	fault("down", Outage, true, after, "")
	fault("down", Outage, false, before, "")
	fault("poison", NoRecovery, false, before, "no video to refuse")
	verdict := Check(h)
	f := verdict.Figures
	if f.Takeovers != 1 || f.OfTakeovers != 2 || f.Outages != 0 || f.OfOutages != 2 {
		t.Errorf("measured: %+v; want 1 of 2 and 0 of 2", f)
	}
	if f.Faults != 4 || f.FaultsByKind["poison"] != 0 || f.FaultsByKind["kill at a point"] != 0 {
		t.Errorf("%d faults: %v; want 4, without those that did not happen", f.Faults, f.FaultsByKind)
	}
	if len(verdict.Misses) != 1 || !verdict.Misses[0].Never {
		t.Errorf("misses %+v, want the outage after which nothing was published", verdict.Misses)
	}
	var out strings.Builder
	report := Report{Verdict: verdict, Injected: h.Faults}
	must(t, report.Print(&out))
	for text, want := range map[string]int{"NOT INJECTED": 2, "NOT MEASURED": 2, "nothing came afterwards": 1, "measured 1 of 2": 1} {
		if n := strings.Count(out.String(), text); n != want {
			t.Errorf("printed %q %d times, want %d:\n%s", text, n, want, out.String())
		}
	}
}

// A run in which nothing happened proves nothing, and its report says so.
func TestReportOfNothingIsNotOK(t *testing.T) {
	full := func() Report {
		return Report{
			LeaseLooks: 1, Connections: map[string]int{"api-1": 3}, Routines: []Routines{{Found: 1, Fresh: 1}},
			Verdict: Verdict{Figures: Figures{Acknowledged: 1, Events: 1, Messages: 1, Reads: 1, Purges: 1, Changes: 1, Faults: 1, Takeovers: 1, LeftBehind: 1, Outages: 1, Backs: 1, MayRepeat: 77}},
		}
	}
	for _, tt := range []struct {
		want   string // text in Unchecked
		change func(r *Report)
	}{
		{"", func(*Report) {}},
		{"0 commands acknowledged", func(r *Report) { r.Figures.Acknowledged = 0 }},
		{"0 events", func(r *Report) { r.Figures.Events = 0 }},
		{"0 messages heard", func(r *Report) { r.Figures.Messages = 0 }},
		{"0 own writes read", func(r *Report) { r.Figures.Reads = 0 }},
		{"0 videos purged", func(r *Report) { r.Figures.Purges = 0 }},
		{"0 changes watched", func(r *Report) { r.Figures.Changes = 0 }},
		{"0 faults injected", func(r *Report) { r.Figures.Faults = 0 }},
		{"0 of 0 takeovers measured", func(r *Report) { r.Figures.Takeovers = 0 }},
		{"0 of 0 outages measured", func(r *Report) { r.Figures.Outages = 0 }},
		{"0 takeovers of something unsettled", func(r *Report) { r.Figures.LeftBehind = 0 }},
		{"0 of 0 returns of every process measured", func(r *Report) { r.Figures.Backs = 0 }},
		{"", func(r *Report) { r.Figures.Acknowledged, r.Figures.Commands = 2, 3 }},
		{"only 1 of 2 commands acknowledged", func(r *Report) { r.Figures.Commands = 2 }},
		{"", func(r *Report) { r.Figures.Reads, r.Unread = 4, map[string]int{"Canceled": 1, "Unavailable": 1} }},
		{"only 3 own writes read beside 2 reads and streams that failed", func(r *Report) { r.Figures.Reads, r.Unread = 3, map[string]int{"Canceled": 1, "Unavailable": 1} }},
		{"", func(r *Report) { r.Figures.Outages, r.Figures.OfOutages = 8, 9 }},
		{"", func(r *Report) { r.Long, r.Figures.Outages, r.Figures.OfOutages = true, 9, 10 }},
		{"8 of 9 outages measured, 1 of 2 returns of every process measured", func(r *Report) {
			r.Long, r.Figures.Outages, r.Figures.OfOutages, r.Figures.OfBacks = true, 8, 9, 2
		}},
		{`the fault "kill": nobody there`, func(r *Report) {
			r.Injected = []FaultRecord{{Kind: "kill", Missing: "nobody there"}, {Kind: "freeze"}, {Kind: "kill", Missing: "still nobody"}}
			r.Figures.FaultsByKind = map[string]int{"freeze": 1}
		}},
		{"", func(r *Report) { // it took effect the second time
			r.Injected = []FaultRecord{{Kind: "kill", Missing: "nobody there"}, {Kind: "kill"}}
			r.Figures.FaultsByKind = map[string]int{"kill": 1}
		}},
		{"0 looks at leases", func(r *Report) { r.LeaseLooks = 0 }},
		{"0 processes whose connections were counted", func(r *Report) { r.Connections = nil }},
		{"0 processes whose goroutines were counted", func(r *Report) { r.Routines = nil }},
	} {
		r := full()
		tt.change(&r)
		var out strings.Builder
		must(t, r.Print(&out))
		got := strings.Join(r.Unchecked(), ", ")
		if got != tt.want || r.OK() != (tt.want == "") || strings.Contains(out.String(), "every promise was kept") != (tt.want == "") {
			t.Errorf("unchecked: %q, want %q; OK is %t; printed:\n%s", got, tt.want, r.OK(), out.String())
		}
		if !strings.Contains(out.String(), "may cause 77") {
			t.Errorf("printed, without the duplicates that are allowed:\n%s", out.String())
		}
	}
}

// The report says if a long run was too small. A short run has no such targets.
func TestReportComparesWithTheTargets(t *testing.T) {
	outcome := func(r Report) string {
		var all []string
		for _, g := range r.goals() {
			all = append(all, fmt.Sprint(g.Name, " ", g.Met))
		}
		return strings.Join(all, ", ")
	}
	r := Report{Verdict: Verdict{Counts: map[Rule]int{}, Figures: Figures{Faults: longFaults, Events: longEvents, Takeovers: 1, OfTakeovers: 1, Outages: 1, OfOutages: 1, Backs: 2, OfBacks: 2}}}
	const promises = "lost true, out of order true, rows different true, leaks true, takeover true, first publish after outages true, first event in the catalog after outages true, every process at work after a fault true"
	if got := outcome(r); got != promises {
		t.Errorf("a short run: %s, want %s", got, promises)
	}
	r.Long = true
	if got, want := outcome(r), "faults true, events true, "+promises; got != want {
		t.Errorf("a long run: %s, want %s", got, want)
	}
	r.Figures.Faults--
	r.Figures.Events--
	r.Figures.Takeovers = 0
	r.Counts[LaneStays], r.Counts[MessageUnheard] = 1, 1
	r.Misses = []Miss{{Of: Outage}}
	const missed = "faults false, events false, lost false, out of order true, rows different true, leaks false, takeover false, first publish after outages false, first event in the catalog after outages true, every process at work after a fault true"
	if got := outcome(r); got != missed {
		t.Errorf("a long run that missed its targets: %s, want %s", got, missed)
	}
	r.Misses = []Miss{{Of: Catalog}}
	if got := outcome(r); !strings.HasSuffix(got, "first publish after outages true, first event in the catalog after outages false, every process at work after a fault true") {
		t.Errorf("a run after whose outages the catalog stood still: %s", got)
	}
	r.Misses = []Miss{{Of: Back}}
	if got := outcome(r); !strings.HasSuffix(got, "every process at work after a fault false") {
		t.Errorf("a run after whose faults a process came back late: %s", got)
	}
	r.Misses, r.Counts[NotBack] = nil, 1
	if got := outcome(r); !strings.HasSuffix(got, "every process at work after a fault false") {
		t.Errorf("a run after whose faults a process stayed away: %s", got)
	}
}

// The clock of a process changes the times of its events. That must not count as
// waiting.
func TestCheckerKnowsWrongClocks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		clock time.Duration // offset in the record of the fault
		event time.Duration // offset of the event's time
		want  time.Duration // measured waiting time at the kill, if the event is published a second after the kill
	}{
		{"right", 0, 0, 0},
		{"back", -time.Hour, -time.Hour, 0},
		{"ahead", time.Hour, time.Hour, 0},
		{"back, and nobody knows", 0, -time.Hour, time.Second},
		{"waited for long", -2 * time.Hour, -time.Hour, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := sound()
			at := h.Database.Events[0].OccurredAt
			h.Faults = []FaultRecord{
				{Kind: "clock", Clock: tt.clock, Struck: at.Add(-time.Second), Ended: at.Add(time.Second)},
				{Kind: "kill", Recovery: Takeover, Struck: at.Add(-500 * time.Millisecond), Ended: at, Alone: true},
			}
			for i := range h.Database.Events {
				h.Database.Events[i].OccurredAt = at.Add(tt.event)
			}
			for id := range h.Publications {
				h.Publications[id] = at.Add(500 * time.Millisecond)
			}
			Check(h)
			if got := h.Faults[1].Takeover; got != tt.want {
				t.Errorf("takeover took %s, want %s", got, tt.want)
			}
		})
	}
}

// Times of events are in whole milliseconds, so an event may seem older than the
// fault that caused it.
func TestCheckerRoundsWrongClocks(t *testing.T) {
	struck := time.Date(2026, 1, 2, 3, 4, 5, 600_000, time.UTC)
	back := []*FaultRecord{{Clock: -time.Hour, Struck: struck, Ended: struck.Add(time.Second)}}
	right := struck.Truncate(time.Millisecond)
	if got := occurred(right.Add(-time.Hour), struck, back); !got.Equal(right) {
		t.Errorf("occurred() = %s, want %s", got, right)
	}
}

// A report names every broken rule and its count, but has a limited length.
func TestReportTellsWhatBroke(t *testing.T) {
	h := sound()
	for range 100 {
		h.Problems = append(h.Problems, Violation{ProcessEnded, "publisher-1"})
	}
	var out strings.Builder
	report := Report{Seed: 7, Verdict: Check(h)}
	must(t, report.Print(&out))
	if report.OK() || !strings.Contains(out.String(), "100 times") || strings.Count(out.String(), "publisher-1") != detailsPerRule {
		t.Errorf("OK is %t, printed:\n%s", report.OK(), out.String())
	}
}
