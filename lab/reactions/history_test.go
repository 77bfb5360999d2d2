package reactions

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// happened is an event of the outbox.
type happened struct {
	id, of      uuid.UUID // of the event, and of its video
	typ         string
	version     int64
	cause, root *uuid.UUID // causation_id and correlation_id
	state       *videov1.VideoEvent
}

// reactorHistory is what is left of a run: see reminded.
type reactorHistory struct {
	created   []uuid.UUID         // videos whose creation a client got a response for
	events    []happened          // in the order of video and version
	versions  map[uuid.UUID]int64 // of the rows of videos
	published map[string][]string // ids of events by ordering key, in the order of their first publication
	waiting   []string            // what waits for something
}

// violations returns what must not be.
func (h reactorHistory) violations() []string {
	found := append(h.outOfOrder(), h.wrongEffects()...)
	for _, what := range h.waiting {
		found = append(found, "left waiting: "+what)
	}
	return found
}

// byVideo returns the events of each video.
func (h reactorHistory) byVideo() map[uuid.UUID][]happened {
	all := make(map[uuid.UUID][]happened)
	for _, e := range h.events {
		all[e.of] = append(all[e.of], e)
	}
	return all
}

// outOfOrder checks the versions of each video, and the order in which its events were published.
func (h reactorHistory) outOfOrder() (found []string) {
	videos := h.byVideo()
	for _, id := range h.created {
		if videos[id] == nil {
			found = append(found, fmt.Sprintf("lost: video %s", id))
		}
	}
	for id, events := range videos {
		var ids []string
		for n, e := range events {
			ids = append(ids, e.id.String())
			if e.version != int64(n)+1 {
				found = append(found, fmt.Sprintf("gap: event %d of video %s has version %d", n+1, id, e.version))
			}
		}
		if last := events[len(events)-1].version; h.versions[id] != last {
			found = append(found, fmt.Sprintf("row: video %s has version %d, want that of its last event, %d", id, h.versions[id], last))
		}
		if got := h.published[id.String()]; !slices.Equal(got, ids) {
			found = append(found, fmt.Sprintf("order: the events of video %s were published as %v, want %v", id, got, ids))
		}
	}
	return found
}

// effect is what an event must cause once: an event of a video.
type effect struct{ cause, of uuid.UUID }

// wrongEffects checks the effects of each event, the timers, and the tallies.
func (h reactorHistory) wrongEffects() (found []string) {
	effects := make(map[effect][]happened)
	for _, e := range h.events {
		if e.cause != nil {
			made := effect{*e.cause, e.of}
			effects[made] = append(effects[made], e)
		}
	}
	for made, events := range effects {
		if len(events) > 1 {
			found = append(found, fmt.Sprintf("twice: event %s has caused %d events of video %s", made.cause, len(events), made.of))
		}
	}
	counted := make(map[uuid.UUID]int64)
	for id, events := range h.byVideo() {
		if events[0].cause != nil {
			continue // a tally
		}
		counted[tallyOf(id)]++
		first := events[0].id
		for _, of := range []uuid.UUID{id, tallyOf(id)} {
			got := effects[effect{first, of}]
			if len(got) == 0 {
				found = append(found, fmt.Sprintf("no effect: the creation of video %s has caused no event of video %s", id, of))
			} else if root := got[0].root; root == nil || *root != first {
				found = append(found, fmt.Sprintf("chain: the effect of event %s has another correlation_id", first))
			}
		}
		found = append(found, wrongTimer(id, events)...)
	}
	for tally, want := range counted {
		events := h.byVideo()[tally]
		if len(events) == 0 || events[len(events)-1].state.GetVideo().GetDurationMs() != want {
			found = append(found, fmt.Sprintf("tally: %s has %d events, want that it has counted %d videos", tally, len(events), want))
		}
	}
	return found
}

// wrongTimer checks that the timer of a video has fired once, when it was due, or was cancelled.
func wrongTimer(id uuid.UUID, events []happened) (found []string) {
	var set happened
	var fired, cancelled []happened
	asked := make(map[uuid.UUID]bool) // events with which a client stops the timer
	for _, e := range events {
		tags := e.state.GetVideo().GetTags()
		switch {
		case e.cause == nil:
			asked[e.id] = stops(e.state.GetVideo().GetDescription(), e.state.GetUpdated().GetChangedFields())
		case e.typ == "VideoPublished":
			fired = append(fired, e)
		case len(tags) == 0: // it has neither set nor cancelled the timer
		case tags[len(tags)-1] == seenTag:
			set = e
		case tags[len(tags)-1] == stoppedTag:
			cancelled = append(cancelled, e)
		}
	}
	if len(fired)+len(cancelled) != 1 {
		found = append(found, fmt.Sprintf("timer: that of video %s has fired %d times, and was cancelled %d times", id, len(fired), len(cancelled)))
	}
	for _, e := range fired {
		if *e.cause != set.id {
			found = append(found, fmt.Sprintf("timer: event %s is not of the timer of video %s", e.id, id))
		}
		due := time.UnixMilli(set.state.GetOccurredAtMs()).Add(remindAfter(id).Truncate(time.Millisecond))
		if at := time.UnixMilli(e.state.GetOccurredAtMs()); at.Before(due) {
			found = append(found, fmt.Sprintf("timer: that of video %s fired %s too early", id, due.Sub(at)))
		}
	}
	for _, e := range cancelled {
		if !asked[*e.cause] {
			found = append(found, fmt.Sprintf("timer: nobody has stopped that of video %s", id))
		}
	}
	return found
}

// newHistory returns the history of three videos. The timer of the first has fired; the second was stopped; the third was stopped
// too late. The last two have the same tally.
func newHistory() reactorHistory {
	h := reactorHistory{versions: map[uuid.UUID]int64{}, published: map[string][]string{}}
	first, second, third := uuid.UUID{15: 1}, uuid.UUID{15: 2}, uuid.UUID{15: 6}
	h.created = []uuid.UUID{first, second, third}
	now := time.UnixMilli(0)
	add := func(of uuid.UUID, typ string, cause *happened, state *videov1.VideoEvent) *happened {
		h.versions[of]++
		e := happened{id: uuid.UUID{0: 1, 15: byte(len(h.events))}, of: of, typ: typ, version: h.versions[of], state: state}
		state.OccurredAtMs = now.UnixMilli()
		if cause != nil {
			root := cause.id
			if cause.root != nil {
				root = *cause.root
			}
			e.cause, e.root = &cause.id, &root
		}
		h.events = append(h.events, e)
		h.published[of.String()] = append(h.published[of.String()], e.id.String())
		return &e
	}
	state := func(duration int64, tags ...string) *videov1.VideoEvent {
		return &videov1.VideoEvent{Video: &videov1.VideoEvent_Snapshot{DurationMs: duration, Tags: tags}}
	}
	stopping := func(tags ...string) *videov1.VideoEvent {
		e := state(0, tags...)
		e.Video.Description, e.Type = stop, &videov1.VideoEvent_Updated{Updated: &videov1.VideoEvent_VideoUpdated{ChangedFields: []string{"description"}}}
		return e
	}
	for _, id := range h.created {
		created := add(id, "VideoCreated", nil, state(0))
		set := add(id, "VideoUpdated", created, state(0, seenTag))
		add(tallyOf(id), "VideoUpdated", created, state(h.versions[tallyOf(id)]+1))
		if id == second {
			stopped := add(id, "VideoUpdated", nil, stopping(seenTag))
			add(id, "VideoUpdated", stopped, state(0, seenTag, stoppedTag))
			continue
		}
		now = now.Add(remindAfter(id))
		add(id, "VideoPublished", set, state(0, seenTag))
		if id == third {
			add(id, "VideoUpdated", nil, stopping(seenTag))
		}
	}
	slices.SortFunc(h.events, func(a, b happened) int {
		if a.of != b.of {
			return strings.Compare(a.of.String(), b.of.String())
		}
		return int(a.version - b.version)
	})
	return h
}

// at returns the index of an event.
func (h reactorHistory) at(id byte, version int64) int {
	return slices.IndexFunc(h.events, func(e happened) bool { return e.of == uuid.UUID{15: id} && e.version == version })
}

// The checker finds each mistake in a history without one.
func TestReactorHistoryIsChecked(t *testing.T) {
	t.Parallel()
	if found := newHistory().violations(); len(found) > 0 {
		t.Fatalf("the right history has violations: %q", found)
	}
	remove := func(h *reactorHistory, at int) {
		gone := h.events[at]
		h.versions[gone.of]--
		h.published[gone.of.String()] = slices.DeleteFunc(slices.Clone(h.published[gone.of.String()]), func(id string) bool { return id == gone.id.String() })
		h.events = slices.Delete(h.events, at, at+1)
	}
	again := func(h *reactorHistory, e happened) { // appends an event of its video
		e.id = uuid.UUID{0: 2}
		h.versions[e.of]++
		e.version = h.versions[e.of]
		last := slices.IndexFunc(h.events, func(o happened) bool { return o.of == e.of && o.version == e.version-1 })
		h.events = slices.Insert(h.events, last+1, e)
		h.published[e.of.String()] = append(h.published[e.of.String()], e.id.String())
	}
	for want, mutate := range map[string]func(*reactorHistory){
		"lost: ":  func(h *reactorHistory) { h.created = append(h.created, uuid.UUID{15: 9}) },
		"gap: ":   func(h *reactorHistory) { h.events = slices.Delete(h.events, h.at(1, 2), h.at(1, 3)) },
		"row: ":   func(h *reactorHistory) { h.versions[uuid.UUID{15: 1}]++ },
		"order: ": func(h *reactorHistory) { slices.Reverse(h.published[uuid.UUID{15: 2}.String()]) },
		"order: the events of video 00000000-0000-0000-0000-000000000002 were published as []": func(h *reactorHistory) {
			delete(h.published, uuid.UUID{15: 2}.String())
		},
		"twice: ":                            func(h *reactorHistory) { again(h, h.events[h.at(1, 2)]) },
		"no effect: ":                        func(h *reactorHistory) { h.events[h.at(1, 2)].cause = &uuid.UUID{0: 3} },
		"chain: ":                            func(h *reactorHistory) { h.events[h.at(1, 2)].root = nil },
		"fired 0 times, and was cancelled 0": func(h *reactorHistory) { remove(h, h.at(1, 3)) },
		"fired 2 times, and was cancelled 0": func(h *reactorHistory) { again(h, h.events[h.at(1, 3)]) },
		"fired 0 times, and was cancelled 2": func(h *reactorHistory) { again(h, h.events[h.at(2, 4)]) },
		"fired 1 times, and was cancelled 1": func(h *reactorHistory) { e := h.events[h.at(1, 3)]; e.of = uuid.UUID{15: 2}; again(h, e) },
		"is not of the timer":                func(h *reactorHistory) { h.events[h.at(1, 3)].cause = &uuid.UUID{0: 3} },
		"too early":                          func(h *reactorHistory) { h.events[h.at(1, 3)].state.OccurredAtMs-- },
		"nobody has stopped":                 func(h *reactorHistory) { h.events[h.at(2, 4)].cause = &uuid.UUID{0: 3} },
		"has 2 events, want that it has coun": func(h *reactorHistory) {
			h.events[slices.IndexFunc(h.events, func(e happened) bool { return e.of == tallyOf(uuid.UUID{15: 6}) && e.version == 2 })].state.Video.DurationMs = 1
		},
		"has 0 events, want that it has coun": func(h *reactorHistory) {
			h.events = slices.DeleteFunc(h.events, func(e happened) bool { return e.of == tallyOf(uuid.UUID{15: 1}) })
		},
		"left waiting: ": func(h *reactorHistory) { h.waiting = []string{"a timer"} },
	} {
		h := newHistory()
		mutate(&h)
		if found := h.violations(); !slices.ContainsFunc(found, func(v string) bool { return strings.Contains(v, want) }) {
			t.Errorf("violations %q, want one with %q; versions %v", found, want, slices.Collect(maps.Values(h.versions)))
		}
	}
}
