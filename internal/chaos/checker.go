package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Rule is something that must hold, named by how it is broken.
type Rule string

// The rules.
const (
	CommandLost        Rule = "acknowledged command lost"
	AnswerWrong        Rule = "answer differs from the event"
	FailedTookEffect   Rule = "failed command took effect"
	CreatedTwice       Rule = "one create made two videos"
	UpdatedTwice       Rule = "one update took effect more often than it was sent"
	EtagIgnored        Rule = "etag ignored"
	RowWithoutEvent    Rule = "row without event"
	EventWithoutRow    Rule = "event without row"
	RowDiffers         Rule = "row differs from its last event"
	VersionRepeated    Rule = "two events of one version"
	EventLost          Rule = "event never published"
	UnknownMessage     Rule = "message without event"
	MessageUnheard     Rule = "message published and not delivered"
	MessageDiffers     Rule = "message differs from its event"
	OutOfOrder         Rule = "first delivery out of order"
	DuplicateUncaused  Rule = "duplicate that no fault explains"
	TooManyDuplicates  Rule = "more duplicates than the faults allow"
	ProjectionDiffers  Rule = "projection differs from the source"
	EventNotConsumed   Rule = "event never consumed"
	StuckPending       Rule = "event stuck in the outbox"
	StuckBlocked       Rule = "aggregate stuck"
	StuckLease         Rule = "lease stuck"
	MessageQuarantined Rule = "message quarantined"
	MessageDead        Rule = "message became a dead letter"
	OwnWriteUnseen     Rule = "own write not seen"
	EntryWrong         Rule = "entry differs from its event"
	ReadRefused        Rule = "read refused"
	WatchDiffers       Rule = "watcher ends with another catalog"
	WatchWentBack      Rule = "watcher was shown an older version after a newer one"
	WatchRefused       Rule = "watcher refused"
	LaneNotHeld        Rule = "lane settled by who did not hold it"
	LaneTaken          Rule = "lane claimed while it was leased"
	ConnectionLeaked   Rule = "connection leaked"
	GoroutineLeaked    Rule = "goroutines leaked"
	LaneStays          Rule = "lane leased for longer than a lease can be"
	NotCounted         Rule = "could not be counted"
	CodeUnexpected     Rule = "code that no fault explains"
	ProcessEnded       Rule = "process ended unasked"
	StopFailed         Rule = "process did not stop cleanly"
	NotBack            Rule = "process does not come back"
	NotQuiet           Rule = "not quiet in time"
)

// Violation is a rule that was broken, and where.
type Violation struct {
	Rule   Rule   `json:"rule"`
	Detail string `json:"detail"`
}

// Miss is a target for the speed of recovery that was not met.
type Miss struct {
	Fault  FaultRecord   `json:"fault"`
	Of     Recovery      `json:"of"`
	Took   time.Duration `json:"took_ns"`
	Never  bool          `json:"never,omitempty"` // nothing came afterwards
	Target time.Duration `json:"target_ns"`
}

// Verdict is what the checker found.
type Verdict struct {
	Violations []Violation  `json:"violations"` // at most detailsPerRule of each rule
	Counts     map[Rule]int `json:"counts"`     // all of them
	Misses     []Miss       `json:"missed_targets"`
	Figures    Figures      `json:"figures"`
}

// Figures are what was checked, and how it went.
type Figures struct {
	Commands      int            `json:"commands"`
	Acknowledged  int            `json:"acknowledged"`
	Failed        int            `json:"failed"`
	Unknown       int            `json:"unknown"`
	Videos        int            `json:"videos"`
	Events        int            `json:"events"`
	Messages      int            `json:"messages"`
	Deliveries    int            `json:"deliveries"`
	Duplicates    int            `json:"duplicates"`
	MayRepeat     int            `json:"duplicates_allowed"`
	MostRepeated  int            `json:"most_duplicates_of_a_fault"` // of those that were alone
	OwnMayRepeat  int            `json:"duplicates_allowed_alone"`   // those that were alone, together
	OwnRepeated   int            `json:"duplicates_alone"`           // likewise
	Faults        int            `json:"faults"`                     // those that happened
	FaultsByKind  map[string]int `json:"faults_by_kind"`
	WorstTakeover time.Duration  `json:"worst_takeover_ns"`      // of the faults that were alone
	WorstOutage   time.Duration  `json:"worst_first_publish_ns"` // after outages that were alone
	WorstCatalog  time.Duration  `json:"worst_first_consume_ns"` // likewise, until the catalog goes on
	Takeovers     int            `json:"takeovers_measured"`
	OfTakeovers   int            `json:"takeovers_to_measure"`
	LeftBehind    int            `json:"takeovers_of_unsettled_events"` // of those measured
	Outages       int            `json:"outages_measured"`
	OfOutages     int            `json:"outages_to_measure"`
	WorstClock    time.Duration  `json:"worst_takeover_after_clock_ns"` // of the faults that were alone
	Clocks        int            `json:"clocks_measured"`
	OfClocks      int            `json:"clocks_to_measure"`
	WorstBack     time.Duration  `json:"worst_back_ns"` // of the faults that were alone
	Backs         int            `json:"backs_measured"`
	OfBacks       int            `json:"backs_to_measure"`
	Reads         int            `json:"own_writes_read"`
	Changes       int            `json:"changes_watched"`
	Breaks        int            `json:"watches_broken"`
	Stalls        int            `json:"stalls"`
}

// detailsPerRule bounds the report, not the counts.
const detailsPerRule = 20

type checker struct {
	h       *History
	verdict Verdict
	events  map[uuid.UUID]*EventRow
	byVideo map[uuid.UUID][]*EventRow // in the order of versions
	first   map[uuid.UUID]time.Time   // when the broker took an event for the first time
}

// Check judges a history. It changes nothing but the measured fields of the
// faults, which it fills in.
func Check(h *History) Verdict {
	c := &checker{
		h: h, verdict: Verdict{Counts: map[Rule]int{}, Figures: Figures{FaultsByKind: map[string]int{}}},
		events: map[uuid.UUID]*EventRow{}, byVideo: map[uuid.UUID][]*EventRow{}, first: map[uuid.UUID]time.Time{},
	}
	for _, p := range h.Problems {
		c.broken(p.Rule, "%s", p.Detail)
	}
	c.index()
	c.checkSource()
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
	}
	for _, events := range c.byVideo {
		slices.SortFunc(events, func(a, b *EventRow) int { return cmp.Compare(a.Version, b.Version) })
	}
	c.verdict.Figures.Events = len(c.h.Database.Events)
	c.verdict.Figures.Videos = len(c.h.Database.Videos)
}

// checkSource compares rows and events: version n of a row needs the events 1
// to n, and no more.
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

// checkAnswers compares what clients were told with the events.
func (c *checker) checkAnswers() {
	outcomes := make(map[int64]Outcome, len(c.h.Answers))
	mayUpdate := make(map[int64]int, len(c.h.Answers)) // how often a command may: the answer, and what was lost
	f := &c.verdict.Figures
	f.Commands = len(c.h.Answers)
	for _, a := range c.h.Answers {
		outcomes[a.Command] = a.Outcome
		mayUpdate[a.Command] = a.Lost
		switch a.Outcome {
		case Acknowledged:
			mayUpdate[a.Command]++
			f.Acknowledged++
			c.checkAcknowledged(a)
		case Failed:
			f.Failed++
		case Unknown:
			f.Unknown++
		}
	}
	created := make(map[int64]uuid.UUID)
	told, lost, failed := c.changes()
	for _, events := range c.byVideo {
		for _, e := range events {
			if kind, ok := kindOf[e.Type]; ok && !told[version{change{e.Video, kind}, e.Version}] {
				which := change{e.Video, kind}
				at, published := c.first[e.ID]
				for published && len(lost[which]) > 0 && lost[which][0].Before(at.Add(-explains)) {
					lost[which] = lost[which][1:]
				}
				if len(lost[which]) == 0 || published && lost[which][0].After(at) {
					c.broken(FailedTookEffect, "event %s, version %d of video %s, is a %s that nobody was told of, nor may be one whose answer was lost until then; those who asked for one and were told that it failed: commands %v",
						e.ID, e.Version, e.Video, kind, failed[which])
				} else {
					lost[which] = lost[which][1:]
				}
			}
			if e.Command == 0 || e.Type != typeCreated && e.Type != typeUpdated {
				continue
			}
			if outcomes[e.Command] == Failed {
				c.broken(FailedTookEffect, "command %d: its client was told that it failed, and there is event %s of video %s", e.Command, e.ID, e.Video)
			}
			if e.Type == typeUpdated {
				if outcome, sent := outcomes[e.Command]; sent && outcome != Failed {
					if mayUpdate[e.Command]--; mayUpdate[e.Command] < 0 {
						c.broken(UpdatedTwice, "command %d: event %s, version %d of video %s, is one too many", e.Command, e.ID, e.Version, e.Video)
					}
				}
				continue
			}
			if other, ok := created[e.Command]; ok {
				c.broken(CreatedTwice, "command %d made the videos %s and %s", e.Command, other, e.Video)
			}
			created[e.Command] = e.Video
		}
	}
}

// explains is for how long an attempt whose answer was lost may be what an event
// comes from: a client tries for half a minute, and no outage keeps an event from
// being published for longer than the rest.
const explains = 5 * time.Minute

// change is a kind of command on a video.
type change struct {
	video uuid.UUID
	kind  string
}

// version is what a change made.
type version struct {
	change
	number int64
}

// kindOf is the command behind each type of event that does not carry a title
// of its own.
var kindOf = map[string]string{
	"VideoPublished": kindPublish, "VideoUnpublished": kindUnpublish, "VideoDeleted": kindDelete, "VideoUndeleted": kindUndelete,
}

// changes answers which versions clients were told of; since when there were
// attempts whose answer was lost, in order, each of which may have made one more;
// and which commands failed.
func (c *checker) changes() (told map[version]bool, lost map[change][]time.Time, failed map[change][]int64) {
	told, lost, failed = make(map[version]bool), make(map[change][]time.Time), make(map[change][]int64)
	for _, a := range c.h.Answers {
		which := change{a.Video, a.Kind}
		for range a.Lost {
			lost[which] = append(lost[which], a.Since)
		}
		switch a.Outcome {
		case Acknowledged:
			told[version{which, a.Version}] = true
		case Failed:
			failed[which] = append(failed[which], a.Command)
		case Unknown:
		}
	}
	for _, attempts := range lost {
		slices.SortFunc(attempts, time.Time.Compare)
	}
	return told, lost, failed
}

// checkCodes looks for answers that a sound service gives only while the
// database fails, or the process that answers is killed. Before the first fault
// there are none that ask a client to try again either.
func (c *checker) checkCodes() {
	for _, o := range c.h.Odd {
		if slices.ContainsFunc(c.h.Stalls, func(s Stall) bool { return !o.At.Before(s.From) && o.At.Before(s.Until.Add(attemptTimeout)) }) {
			continue // nobody was run, so it came too late
		}
		if !slices.ContainsFunc(c.h.Faults, func(f FaultRecord) bool {
			return f.MayFail && !o.At.Before(f.Struck.Add(-attemptTimeout)) && o.At.Before(f.Ended.Add(attemptTimeout))
		}) {
			c.broken(CodeUnexpected, "%s: command %d (0: a stream) was answered %s by %s", o.At.Format(time.RFC3339Nano), o.Command, o.Code, o.Where)
		}
	}
}

// The types of the events whose title is that of their own command.
const (
	typeCreated = "VideoCreated"
	typeUpdated = "VideoUpdated"
)

func (c *checker) checkAcknowledged(a Answer) {
	if a.Expected != 0 && a.Version != a.Expected && a.Version != a.Expected+1 {
		c.broken(EtagIgnored, "command %d (%s) on version %d of video %s was answered with version %d", a.Command, a.Kind, a.Expected, a.Video, a.Version)
	}
	e := c.event(a.Video, a.Version)
	if e == nil {
		c.broken(CommandLost, "command %d (%s): version %d of video %s was answered, and there is no such event", a.Command, a.Kind, a.Version, a.Video)
		return
	}
	if e.State != a.State {
		c.broken(AnswerWrong, "command %d (%s): the answer shows another version %d of video %s than event %s", a.Command, a.Kind, a.Version, a.Video, e.ID)
	}
	// What an update answers has its own title; what a create answers may be newer, if it was repeated, but began with it.
	wrote := e
	if a.Kind == kindCreate {
		wrote = c.event(a.Video, 1)
	}
	if (a.Kind == kindCreate || a.Kind == kindUpdate) && (wrote == nil || wrote.Command != a.Command) {
		c.broken(CommandLost, "command %d (%s) was answered with version %d of video %s, which is not its own", a.Command, a.Kind, a.Version, a.Video)
	}
}

// checkTopic compares what came from the topic with the outbox.
func (c *checker) checkTopic() {
	messages := make(map[string]bool, len(c.h.Sightings))
	copies := make(map[uuid.UUID]int, len(c.events))
	newest := make(map[uuid.UUID]int64)
	latest := make(map[uuid.UUID]time.Time, len(c.events)) // when the broker took a copy of an event last
	var repeats []repeat
	for _, s := range c.h.Sightings {
		if messages[s.MessageID] {
			continue // the broker delivered it again, as it may
		}
		messages[s.MessageID] = true
		e := c.events[s.Event]
		if e == nil || e.Video != s.Video || e.Version != s.Version {
			c.broken(UnknownMessage, "message %s is version %d of video %s, event %s, and the outbox has no such event", s.MessageID, s.Version, s.Video, s.Event)
			continue
		}
		if e.Content != s.Content {
			c.broken(MessageDiffers, "message %s and event %s", s.MessageID, s.Event)
		}
		at := c.h.Publications[s.MessageID]
		if copies[s.Event]++; copies[s.Event] > 1 {
			repeats = append(repeats, repeat{at, latest[s.Event]})
			latest[s.Event] = at
			if at.Before(c.first[s.Event]) {
				c.first[s.Event] = at
			}
			continue
		}
		c.first[s.Event], latest[s.Event] = at, at
		if s.Version != newest[s.Video]+1 {
			c.broken(OutOfOrder, "video %s: version %d came first after version %d (event %s)", s.Video, s.Version, newest[s.Video], s.Event)
		}
		newest[s.Video] = max(newest[s.Video], s.Version)
	}
	for id, e := range c.events {
		if copies[id] == 0 {
			c.broken(EventLost, "event %s, version %d of video %s", id, e.Version, e.Video)
		}
	}
	for id := range c.h.Publications {
		if !messages[id] {
			c.broken(MessageUnheard, "message %s", id)
		}
	}
	f := &c.verdict.Figures
	f.Messages, f.Deliveries, f.Duplicates = len(messages), len(c.h.Sightings), len(repeats)
	c.checkRepeats(repeats)
}

// window is a time in which events may be published once more, and how many.
type window struct {
	from, until time.Time
	allowed     int
}

// repeat is an event that was published once more, and when it was before.
type repeat struct{ at, before time.Time }

// checkRepeats looks for the cause of each duplicate: a fault that may have
// left something unsettled, at most a lease and what a look at the outbox
// takes ago, and something that was published no longer than that before the
// fault: what is older was settled. Faults that overlap share what they may
// cause, but one that is alone, until the next one strikes, only its own. A stall of
// the machine is a cause, too.
func (c *checker) checkRepeats(repeats []repeat) {
	const look = 2 * time.Second
	var windows []window
	for i := range c.h.Faults {
		f := &c.h.Faults[i]
		until := f.Ended.Add(c.h.Limits.Lease + look)
		if f.MayRepeat > 0 {
			windows = append(windows, window{f.Struck, until, f.MayRepeat})
			c.verdict.Figures.MayRepeat += f.MayRepeat
		}
		if f.Alone {
			c.checkAlone(f, until, repeats)
		}
	}
	for _, s := range c.h.Stalls {
		windows = append(windows, window{s.From, s.Until.Add(c.h.Limits.Lease + look), s.MayRepeat})
		c.verdict.Figures.MayRepeat += s.MayRepeat
	}
	c.verdict.Figures.Stalls = len(c.h.Stalls)
	slices.SortFunc(windows, func(a, b window) int { return a.from.Compare(b.from) })
	var merged []window
	for _, w := range windows {
		if last := len(merged) - 1; last >= 0 && w.from.Before(merged[last].until) {
			merged[last].allowed += w.allowed
			if w.until.After(merged[last].until) {
				merged[last].until = w.until
			}
			continue
		}
		merged = append(merged, w)
	}
	counts := make([]int, len(merged))
	for _, r := range repeats {
		in := func(w window) bool { return !r.at.Before(w.from) && r.at.Before(w.until) }
		// What was last published long before a fault was settled when it struck.
		caused := func(w window) bool { return in(w) && !r.before.Before(w.from.Add(-c.h.Limits.Lease-look)) }
		if !slices.ContainsFunc(windows, caused) {
			c.broken(DuplicateUncaused, "at %s, before that at %s", r.at.Format(time.RFC3339Nano), r.before.Format(time.RFC3339Nano))
			continue
		}
		i := slices.IndexFunc(merged, in)
		counts[i]++
	}
	for i, n := range counts {
		if n > merged[i].allowed {
			c.broken(TooManyDuplicates, "%d from %s to %s, allowed are %d", n,
				merged[i].from.Format(time.RFC3339Nano), merged[i].until.Format(time.RFC3339Nano), merged[i].allowed)
		}
	}
}

// checkAlone counts what was published before a fault that was alone, and once
// more because of it: all that earlier ones had left was published when it struck,
// and what is published for the first time later is none of what its victims had.
func (c *checker) checkAlone(f *FaultRecord, until time.Time, repeats []repeat) {
	for _, other := range c.h.Faults {
		if other.Struck.After(f.Struck) && other.Struck.Before(until) {
			until = other.Struck
		}
	}
	for _, r := range repeats {
		if r.before.Before(f.Struck) && !r.at.Before(f.Struck) && r.at.Before(until) {
			f.Repeated++
		}
	}
	allowed := f.MayRepeat
	for _, s := range c.h.Stalls {
		if s.From.Before(until) && s.Until.After(f.Struck) {
			allowed += s.MayRepeat
		}
	}
	if f.Repeated > allowed {
		c.broken(TooManyDuplicates, "%d after %s (%s) at %s, which was alone, allowed are %d", f.Repeated, f.Kind, f.Target, f.Struck.Format(time.RFC3339Nano), allowed)
	}
	figures := &c.verdict.Figures
	figures.OwnMayRepeat += f.MayRepeat
	figures.OwnRepeated += f.Repeated
	figures.MostRepeated = max(figures.MostRepeated, f.Repeated)
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
		if !db.Inbox[id] {
			c.broken(EventNotConsumed, "event %s, version %d of video %s", id, e.Version, e.Video)
		}
	}
}

// checkReads compares what clients were shown of the catalog with the event of
// the version that it said it was.
func (c *checker) checkReads() {
	c.verdict.Figures.Reads = len(c.h.Reads)
	for _, r := range c.h.Reads {
		if r.Hidden {
			events := c.byVideo[r.Video]
			from, _ := slices.BinarySearchFunc(events, r.Asked, compareVersion)
			if !slices.ContainsFunc(events[from:], func(e *EventRow) bool { return e.Entry == 0 && !c.first[e.ID].After(r.At) }) {
				c.broken(EntryWrong, "command %d: version %d of video %s was asked for and none found, and every version published since and until then is to be shown", r.Command, r.Asked, r.Video)
			}
			continue
		}
		if r.Shown.Version < r.Asked {
			c.broken(OwnWriteUnseen, "command %d: version %d of video %s was asked for, version %d was shown", r.Command, r.Asked, r.Video, r.Shown.Version)
		}
		if e := c.event(r.Video, r.Shown.Version); e == nil || e.Entry != r.Shown.Content {
			c.broken(EntryWrong, "command %d: version %d of video %s was shown, and not as its event has it", r.Command, r.Shown.Version, r.Video)
		}
	}
}

// event answers the event of a version, or nil.
func (c *checker) event(video uuid.UUID, version int64) *EventRow {
	events := c.byVideo[video]
	i, found := slices.BinarySearchFunc(events, version, compareVersion)
	if !found {
		return nil
	}
	return events[i]
}

func compareVersion(e *EventRow, version int64) int { return cmp.Compare(e.Version, version) }

// checkCopies compares what watchers have with the catalog. They had the time
// to see its last change.
func (c *checker) checkCopies() {
	for _, w := range c.h.Copies {
		c.verdict.Figures.Changes += w.Changes
		c.verdict.Figures.Breaks += w.Breaks
		for _, back := range w.Back {
			c.broken(WatchWentBack, "%s: video %s, version %d after version %d", w.Watcher, back.Video, back.To, back.From)
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
}
