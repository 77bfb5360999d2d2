package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

type checker struct {
	h       *History
	verdict Verdict
	events  map[uuid.UUID]*EventRow
	byVideo map[uuid.UUID][]*EventRow // in the order of versions
	first   map[uuid.UUID]time.Time   // when the broker first accepted the event
	purges  map[uuid.UUID]*EventRow   // the purge of a video
}

// Check checks a history. It changes nothing but the measured fields of the
// faults, which it sets.
func Check(h *History) Verdict {
	c := &checker{
		h: h, verdict: Verdict{Counts: map[Rule]int{}, Figures: Figures{FaultsByKind: map[string]int{}}},
		events: map[uuid.UUID]*EventRow{}, byVideo: map[uuid.UUID][]*EventRow{}, first: map[uuid.UUID]time.Time{}, purges: map[uuid.UUID]*EventRow{},
	}
	for _, p := range h.Problems {
		c.broken(p.Rule, "%s", p.Detail)
	}
	c.index()
	c.checkSource()
	c.checkPurges()
	c.checkTopic()
	c.checkAnswers()
	c.checkCodes()
	c.checkProjection()
	c.checkReads()
	c.checkCopies()
	c.checkLanes()
	c.checkQuiet()
	c.measure()
	return c.verdict
}

func (c *checker) broken(rule Rule, format string, args ...any) {
	c.verdict.Counts[rule]++
	if c.verdict.Counts[rule] <= detailsPerRule {
		c.verdict.Violations = append(c.verdict.Violations, Violation{rule, fmt.Sprintf(format, args...)})
	}
}

func (c *checker) index() {
	for i := range c.h.Database.Events {
		e := &c.h.Database.Events[i]
		c.events[e.ID] = e
		c.byVideo[e.Video] = append(c.byVideo[e.Video], e)
		if e.Type == typePurged {
			c.purges[e.Video] = e
		}
	}
	for _, events := range c.byVideo {
		slices.SortFunc(events, func(a, b *EventRow) int { return cmp.Compare(a.Version, b.Version) })
	}
	c.verdict.Figures.Events = len(c.h.Database.Events)
	c.verdict.Figures.Videos = len(c.h.Database.Videos)
}

// checkSource compares rows with events: version n of a row needs exactly the
// events 1 to n.
func (c *checker) checkSource() {
	rows := make(map[uuid.UUID]bool, len(c.h.Database.Videos))
	for _, row := range c.h.Database.Videos {
		rows[row.ID] = true
		want := int64(1)
		for _, e := range c.byVideo[row.ID] {
			switch {
			case e.Version > row.Version:
				c.broken(EventWithoutRow, "video %s has version %d, and there is event %s of version %d", row.ID, row.Version, e.ID, e.Version)
			case e.Version < want:
				c.broken(VersionRepeated, "video %s: version %d is of event %s too", row.ID, e.Version, e.ID)
			default:
				for ; want < e.Version; want++ {
					c.broken(RowWithoutEvent, "video %s has version %d, and no event of version %d", row.ID, row.Version, want)
				}
				want++
			}
			if e.Version == row.Version && e.State != row.State {
				c.broken(RowDiffers, "video %s, version %d, event %s", row.ID, row.Version, e.ID)
			}
		}
		for ; want <= row.Version; want++ {
			c.broken(RowWithoutEvent, "video %s has version %d, and no event of version %d", row.ID, row.Version, want)
		}
	}
	for video, events := range c.byVideo {
		if !rows[video] {
			c.broken(EventWithoutRow, "there is no video %s, and %d events of it", video, len(events))
		}
	}
}

// hearing is what the checker knows of the topic, message by message.
type hearing struct {
	copies  map[uuid.UUID]int
	newest  map[uuid.UUID]int64     // version of a video that was published
	latest  map[uuid.UUID]time.Time // when the broker accepted the newest copy of an event
	repeats []repeat
}

// checkTopic compares the messages of the topic with the events.
func (c *checker) checkTopic() {
	messages := make(map[string]bool, len(c.h.Sightings))
	h := &hearing{copies: make(map[uuid.UUID]int, len(c.events)), newest: make(map[uuid.UUID]int64), latest: make(map[uuid.UUID]time.Time, len(c.events))}
	for _, s := range c.h.Sightings {
		if messages[s.MessageID] {
			continue // a redelivery by the broker, which is allowed
		}
		messages[s.MessageID] = true
		e := c.events[s.Event]
		if e == nil || e.Video != s.Video || e.Version != s.Version {
			c.broken(UnknownMessage, "message %s is version %d of video %s, event %s, and there is no such event", s.MessageID, s.Version, s.Video, s.Event)
			continue
		}
		if e.Content != s.Content {
			c.broken(MessageDiffers, "message %s and event %s", s.MessageID, s.Event)
		}
		c.hear(h, s, e)
	}
	for id, e := range c.events {
		if h.copies[id] == 0 && !c.mayMiss(e) {
			c.broken(EventLost, "event %s, version %d of video %s", id, e.Version, e.Video)
		}
	}
	for id := range c.h.Publications {
		if !messages[id] {
			c.broken(MessageUnheard, "message %s", id)
		}
	}
	f := &c.verdict.Figures
	f.Messages, f.Deliveries, f.Duplicates = len(messages), len(c.h.Sightings), len(h.repeats)
	c.checkRepeats(h.repeats)
}

// hear checks the order of message s of event e.
func (c *checker) hear(h *hearing, s Sighting, e *EventRow) {
	at, newest, purge := c.h.Publications[s.MessageID], h.newest[s.Video], c.purges[s.Video]
	// The publisher of a late event had claimed it before the purge, and then lost the lane.
	late := c.mayMiss(e) && newest >= purge.Version
	if h.copies[s.Event]++; h.copies[s.Event] > 1 {
		h.repeats = append(h.repeats, repeat{at, h.latest[s.Event], DuplicateUncaused})
		h.latest[s.Event] = at
		if at.Before(c.first[s.Event]) {
			c.first[s.Event] = at
		}
		return
	}
	c.first[s.Event], h.latest[s.Event] = at, at
	switch {
	case late:
		h.repeats = append(h.repeats, repeat{at, at, AfterPurge})
	case s.Version != newest+1 && (e != purge || s.Version <= newest): // a purge erases what is pending
		c.broken(OutOfOrder, "video %s: version %d came first after version %d (event %s)", s.Video, s.Version, newest, s.Event)
	}
	h.newest[s.Video] = max(newest, s.Version)
}

func (c *checker) checkProjection() {
	db := c.h.Database
	source := make(map[uuid.UUID]bool, len(db.Videos))
	for _, row := range db.Videos {
		source[row.ID] = true
		if got := db.Projection[row.ID]; got != row.Catalog {
			c.broken(ProjectionDiffers, "video %s: got %s, want %s", row.ID, cmp.Or(got, "no row"), row.Catalog)
		}
	}
	for id, got := range db.Projection {
		if !source[id] {
			c.broken(ProjectionDiffers, "video %s: got %s, want no row", id, got)
		}
	}
	for id, e := range c.events {
		if _, published := c.first[id]; !db.Inbox[id] && (published || !c.mayMiss(e)) {
			c.broken(EventNotConsumed, "event %s, version %d of video %s", id, e.Version, e.Video)
		}
	}
}

// checkReads compares what clients read from the catalog with the event of that
// version.
func (c *checker) checkReads() {
	c.verdict.Figures.Reads = len(c.h.Reads)
	for _, r := range c.h.Reads {
		if r.Hidden {
			events := c.byVideo[r.Video]
			from, _ := slices.BinarySearchFunc(events, r.Asked, compareVersion)
			if !slices.ContainsFunc(events[from:], func(e *EventRow) bool { return e.Entry == 0 && c.mayShow(e, r.At) }) {
				c.broken(EntryWrong, "command %d: version %d of video %s was requested and no entry returned, although every version published from there to that time has one", r.Command, r.Asked, r.Video)
			}
			continue
		}
		if r.Shown.Version < r.Asked {
			c.broken(OwnWriteUnseen, "command %d: version %d of video %s was requested, but version %d was returned", r.Command, r.Asked, r.Video, r.Shown.Version)
		}
		if e := c.event(r.Video, r.Shown.Version); e == nil || e.Entry != r.Shown.Content {
			c.broken(EntryWrong, "command %d: the returned version %d of video %s differs from its event", r.Command, r.Shown.Version, r.Video)
		}
	}
}

// mayShow reports whether the catalog may have had an event at a time: it was published.
func (c *checker) mayShow(e *EventRow, at time.Time) bool {
	published, ok := c.first[e.ID]
	return ok && !published.After(at)
}

// event returns the event of a version of a video, or nil.
func (c *checker) event(video uuid.UUID, version int64) *EventRow {
	events := c.byVideo[video]
	i, found := slices.BinarySearchFunc(events, version, compareVersion)
	if !found {
		return nil
	}
	return events[i]
}

func compareVersion(e *EventRow, version int64) int { return cmp.Compare(e.Version, version) }

// checkCopies compares what watchers received with the events, and their final
// copies with the catalog. They had time to receive the last change.
func (c *checker) checkCopies() {
	for _, w := range c.h.Copies {
		c.verdict.Figures.Changes += w.Changes
		c.verdict.Figures.Breaks += w.Breaks
		for _, back := range w.Back {
			c.broken(WatchWentBack, "%s: video %s, version %d after version %d", w.Watcher, back.Video, back.To, back.From)
		}
		for told := range w.Told {
			if e := c.event(told.Video, told.Version); e == nil || e.Entry != told.Content {
				c.broken(EntryWrong, "%s: version %d of video %s was shown as %x, and not as its event has it", w.Watcher, told.Version, told.Video, told.Content)
			}
		}
		for id, want := range c.h.Database.Catalog {
			if got, ok := w.Entries[id]; !ok || got != want {
				c.broken(WatchDiffers, "%s: video %s: got version %d (0: none), want version %d", w.Watcher, id, got.Version, want.Version)
			}
		}
		for id, got := range w.Entries {
			if _, ok := c.h.Database.Catalog[id]; !ok {
				c.broken(WatchDiffers, "%s: video %s: got version %d, want none", w.Watcher, id, got.Version)
			}
		}
	}
}

func (c *checker) checkLanes() {
	for _, o := range c.h.Trespasses {
		rule := LaneNotHeld
		if o.What == trespassTaken {
			rule = LaneTaken
		}
		c.broken(rule, "%s: lane %d, by %s; claimed last by %s", o.At.Format(time.RFC3339Nano), o.Lane, o.Who, cmp.Or(o.Holder, "nobody"))
	}
}

func (c *checker) checkQuiet() {
	db := c.h.Database
	if db.Pending > 0 {
		c.broken(StuckPending, "%d events are pending", db.Pending)
	}
	if db.Quarantined > 0 {
		c.broken(MessageQuarantined, "%d messages", db.Quarantined)
	}
	for _, blocked := range db.Blocked {
		c.broken(StuckBlocked, "%s", blocked)
	}
	for _, leased := range db.Leased {
		c.broken(StuckLease, "%s", leased)
	}
	for _, left := range db.Left {
		c.broken(LeftOver, "%s", left)
	}
}
