package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A service that is broken on purpose is found out, by the rule that it
// breaks; one that is not, through many crashes, breaks none.
//
// The sim knows exactly what a fault may repeat: what was sent and not settled.
func TestCheckerFindsDefects(t *testing.T) {
	for _, tt := range []struct {
		defect defect
		want   []Rule // all of them; others may come with them
	}{
		{none, nil},
		{noFence, []Rule{TooManyDuplicates, LaneNotHeld}},
		{claimByRow, []Rule{OutOfOrder}},
		{settleBeforePublish, []Rule{EventLost, EventNotConsumed}},
		{dropsEvent, []Rule{EventLost, EventNotConsumed}},
		{reversesBatch, []Rule{OutOfOrder}},
		{retriesOnSuccess, []Rule{TooManyDuplicates}},
		{ackBeforeCommit, []Rule{EventNotConsumed}},
		{noVersionGuard, []Rule{ProjectionDiffers}},
		{forgetsEvent, []Rule{RowWithoutEvent}},
		{losesRow, []Rule{EventWithoutRow}},
		{answersTooEarly, []Rule{CommandLost}},
		{createsTwice, []Rule{CreatedTwice}},
		{failsAfterCommit, []Rule{FailedTookEffect}},
		{answersOldState, []Rule{AnswerWrong}},
		{ignoresEtag, []Rule{EtagIgnored}},
		{changesPayload, []Rule{MessageDiffers}},
		{inventsMessage, []Rule{UnknownMessage}},
		{ignoresLease, []Rule{LaneTaken}},
		{showsOldEntry, []Rule{OwnWriteUnseen}},
		{showsOtherEntry, []Rule{EntryWrong}},
		{resumesTooLate, []Rule{WatchDiffers}},
		{resumesTooEarly, []Rule{WatchWentBack}},
	} {
		t.Run(string(tt.defect), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				h := simulate(tt.defect, seed)
				verdict := Check(h)
				if len(h.Faults) < 5 || verdict.Figures.Events < 300 {
					t.Fatalf("seed %d: %d faults and %d events, want many", seed, len(h.Faults), verdict.Figures.Events)
				}
				for _, rule := range tt.want {
					if verdict.Counts[rule] == 0 {
						t.Errorf("seed %d: found %v, want %s", seed, verdict.Counts, rule)
					}
				}
				if len(tt.want) == 0 && len(verdict.Counts) > 0 {
					t.Errorf("seed %d: found %v, want nothing: %v", seed, verdict.Counts, verdict.Violations)
				}
			}
		})
	}
}

// sound is a history of two videos in which nothing is wrong.
func sound() *History {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := &History{
		Publications: map[string]time.Time{},
		Limits:       Limits{Lease: time.Second, Takeover: 2 * time.Second, FirstResult: 2 * time.Second, Clock: 3 * time.Second},
		Database:     Database{Projection: map[uuid.UUID]string{}, Catalog: map[uuid.UUID]Entry{}, Inbox: map[uuid.UUID]bool{}},
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
			h.Database.Inbox[e.ID] = true
			h.Answers = append(h.Answers, Answer{Command: e.Command, Outcome: Acknowledged, Video: id, Version: e.Version, State: e.State})
			h.Sightings = append(h.Sightings, Sighting{MessageID: message, Event: e.ID, Video: id, Version: e.Version, Content: e.Content})
			h.Publications[message] = at.Add(time.Millisecond)
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

// Each rule is broken by the smallest change of a history that could break it,
// and no other rule is, unless it must.
func TestCheckerRules(t *testing.T) {
	again := func(h *History, i int, after time.Duration) { // publishes message i a second time
		s := h.Sightings[i]
		h.Publications["again"] = h.Publications[s.MessageID].Add(after)
		s.MessageID = "again"
		h.Sightings = append(h.Sightings, s)
	}
	strike := func(h *History, mayRepeat int) {
		at := h.Publications["1"]
		h.Faults = append(h.Faults, FaultRecord{Kind: "kill", Struck: at, Ended: at, MayRepeat: mayRepeat})
	}
	for _, tt := range []struct {
		name   string
		change func(h *History)
		want   []Rule
	}{
		{"nothing", func(*History) {}, nil},
		{"an answer of a version that is not there", func(h *History) { h.Answers[2].Version = 4 }, []Rule{CommandLost}},
		{"an answer of another state", func(h *History) { h.Answers[2].State++ }, []Rule{AnswerWrong}},
		{"an unknown outcome that took effect", func(h *History) { h.Answers[2].Outcome = Unknown }, nil},
		{"a failure that took effect", func(h *History) { h.Answers[2].Outcome = Failed }, []Rule{FailedTookEffect}},
		{"an etag two versions ago", func(h *History) { h.Answers[2].Expected = 1 }, []Rule{EtagIgnored}},
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
		{"an event that was not published", func(h *History) { h.Sightings = h.Sightings[:5] }, []Rule{EventLost}},
		{"an event that was published late", func(h *History) { h.Sightings[0], h.Sightings[1] = h.Sightings[1], h.Sightings[0] }, []Rule{OutOfOrder}},
		{"a message that was delivered twice", func(h *History) { h.Sightings = append(h.Sightings, h.Sightings[0]) }, nil},
		{"a message of other bytes", func(h *History) { h.Sightings[1].Content++ }, []Rule{MessageDiffers}},
		{"a message of no event", func(h *History) { h.Sightings[5].Event = uuid.UUID{9} }, []Rule{EventLost, UnknownMessage}},
		{"a duplicate without a fault", func(h *History) { again(h, 1, time.Second) }, []Rule{DuplicateUncaused}},
		{"a duplicate after a fault", func(h *History) { strike(h, 1); again(h, 1, time.Second) }, nil},
		{"a duplicate long after a fault", func(h *History) { strike(h, 1); again(h, 1, 4*time.Second) }, []Rule{DuplicateUncaused}},
		{"a duplicate after a harmless fault", func(h *History) { strike(h, 0); again(h, 1, time.Second) }, []Rule{DuplicateUncaused}},
		{"two duplicates after a fault that may cause one", func(h *History) {
			strike(h, 1)
			again(h, 1, time.Second)
			h.Sightings = append(h.Sightings, h.Sightings[2])
			h.Sightings[len(h.Sightings)-1].MessageID = "once more"
			h.Publications["once more"] = h.Publications["again"]
		}, []Rule{TooManyDuplicates}},
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
			h.Reads[0] = Read{Video: uuid.UUID{0: 1}, Asked: 2, Hidden: true}
		}, nil},
		{"no entry of what was hidden before", func(h *History) {
			h.Database.Events[0].Entry = 0
			h.Reads[0] = Read{Video: uuid.UUID{0: 1}, Asked: 2, Hidden: true}
		}, []Rule{EntryWrong}},
		{"a watcher that missed the last change", func(h *History) { h.Copies[0].Entries[uuid.UUID{0: 1}] = Entry{2, 7} }, []Rule{WatchDiffers}},
		{"a watcher that missed an entry", func(h *History) { h.Copies[0].removed(uuid.UUID{0: 1}) }, []Rule{WatchDiffers}},
		{"a watcher that missed a removal", func(h *History) { h.Copies[0].updated(uuid.UUID{9}, Entry{1, 1}) }, []Rule{WatchDiffers}},
		{"a watcher that was told twice", func(h *History) {
			h.Copies[0].updated(uuid.UUID{0: 1}, h.Database.Catalog[uuid.UUID{0: 1}])
		}, nil},
		{"a watcher that was told something old", func(h *History) {
			h.Copies[0].updated(uuid.UUID{0: 1}, Entry{2, 7})
			h.Copies[0].updated(uuid.UUID{0: 1}, h.Database.Catalog[uuid.UUID{0: 1}])
		}, []Rule{WatchWentBack}},
		{"a lane that a zombie settled", func(h *History) { h.Trespasses = []Trespass{{Who: "zombie", What: trespassSettled}} }, []Rule{LaneNotHeld}},
		{"a lane that was claimed twice", func(h *History) { h.Trespasses = []Trespass{{Who: "other", What: trespassTaken}} }, []Rule{LaneTaken}},
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

// Only faults that were alone are compared with the targets, each with that of
// its kind.
func TestCheckerMeasuresRecovery(t *testing.T) {
	for _, tt := range []struct {
		name     string
		recovery Recovery
		alone    bool
		gap      time.Duration // nothing is published for so long after the fault
		misses   int
	}{
		{"takeover in time", Takeover, true, 1900 * time.Millisecond, 0},
		{"takeover too late", Takeover, true, 2100 * time.Millisecond, 1},
		{"takeover beside another fault", Takeover, false, 2100 * time.Millisecond, 0},
		{"outage in time", Outage, true, 1900 * time.Millisecond, 0},
		{"outage too long", Outage, true, 2100 * time.Millisecond, 1},
		{"clock in time", ClockSet, true, 2900 * time.Millisecond, 0},
		{"clock too late", ClockSet, true, 3100 * time.Millisecond, 1},
		{"nothing to measure", NoRecovery, true, 2100 * time.Millisecond, 0},
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

// The time of an event is wrong by what the clock of its process was, and must
// not count as the time for which it waited.
func TestCheckerKnowsWrongClocks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		clock time.Duration // as the fault says
		event time.Duration // what the time of the event is wrong by
		want  time.Duration // for which events waited at another fault, published a second later
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

// A report names every broken rule, and says how often, without end.
func TestReportTellsWhatBroke(t *testing.T) {
	h := sound()
	for range 100 {
		h.Problems = append(h.Problems, Violation{ProcessEnded, "publisher-1"})
	}
	var out strings.Builder
	report := Report{Seed: 7, Verdict: Check(h)}
	if err := report.Print(&out); err != nil {
		t.Fatal(err)
	}
	if report.OK() || !strings.Contains(out.String(), "100 times") || strings.Count(out.String(), "publisher-1") != detailsPerRule {
		t.Errorf("OK is %t, printed:\n%s", report.OK(), out.String())
	}
}
