package chaos

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
)

// checkAnswers compares what clients received with the events.
func (c *checker) checkAnswers() {
	outcomes := make(map[int64]Outcome, len(c.h.Answers))
	mayUpdate := make(map[int64]int, len(c.h.Answers)) // how many updates a command may cause: its result, and its lost attempts
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
				lost[which] = c.checkUntold(e, which, lost[which], failed[which])
			}
			if e.Command == 0 || e.Type != typeCreated && e.Type != typeUpdated {
				continue
			}
			if outcomes[e.Command] == Failed {
				c.broken(FailedTookEffect, "command %d: its client was told that it failed, but there is event %s of video %s", e.Command, e.ID, e.Video)
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

// checkUntold finds the lost attempt that may have caused an event that no client
// received as a result. It returns the lost attempts that later events may come
// from.
func (c *checker) checkUntold(e *EventRow, which change, lost []time.Time, failed []int64) (left []time.Time) {
	at, published := c.first[e.ID]
	for published && len(lost) > 0 && lost[0].Before(at.Add(-explains)) {
		lost = lost[1:]
	}
	if len(lost) == 0 || published && lost[0].After(at) {
		c.broken(FailedTookEffect, "event %s, version %d of video %s, is a %s in no result, and no lost attempt can be its cause; commands of this kind that failed: %v",
			e.ID, e.Version, e.Video, which.kind, failed)
		return lost
	}
	return lost[1:]
}

// explains is how long a lost attempt may be the cause of an event. A client
// retries for half a minute, and no outage delays the publication of an event for
// longer than the rest.
const explains = 5 * time.Minute

// change is a kind of command on one video.
type change struct {
	video uuid.UUID
	kind  string
}

// version is a version of a video, and the change that created it.
type version struct {
	change
	number int64
}

// kindOf is the kind of command that causes an event, for events without a title
// of their own.
var kindOf = map[string]string{
	"VideoPublished": kindPublish, "VideoUnpublished": kindUnpublish, "VideoDeleted": kindDelete, "VideoUndeleted": kindUndelete,
	typePurged: kindPurge,
}

// changes returns what clients know. told has the versions that they received.
// lost has a time for each lost attempt, in order: the start of its command's first
// one. Each may have created a version. failed has the commands that failed.
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

// checkCodes finds codes that a correct service returns only during a fault of the
// database, or when the process is killed. Before the first fault, the codes of a
// retry are wrong too, except after a stall of the machine.
func (c *checker) checkCodes() {
	for _, o := range c.h.Odd {
		if o.Code == codes.NotFound && c.purges[o.Video] != nil {
			continue // its video was purged
		}
		late := o.again() && slices.ContainsFunc(c.h.Stalls, func(s Stall) bool { return !o.At.Before(s.From) && o.At.Before(s.Until.Add(attemptTimeout)) })
		if !late && !slices.ContainsFunc(c.h.Faults, func(f FaultRecord) bool {
			return f.MayFail && !o.At.Before(f.Struck.Add(-attemptTimeout)) && o.At.Before(f.Ended.Add(attemptTimeout))
		}) {
			c.broken(CodeUnexpected, "%s: command %d (0: a stream) got %s from %s", o.At.Format(time.RFC3339Nano), o.Command, o.Code, o.Where)
		}
	}
}

// The types of the events that have the title of their own command.
const (
	typeCreated = "VideoCreated"
	typeUpdated = "VideoUpdated"
)

// typePurged is the type of the event that has nothing of its video but the id.
const typePurged = "VideoPurged"

func (c *checker) checkAcknowledged(a Answer) {
	if a.Expected != 0 && a.Version != a.Expected && a.Version != a.Expected+1 {
		c.broken(EtagIgnored, "command %d (%s) on version %d of video %s returned version %d", a.Command, a.Kind, a.Expected, a.Video, a.Version)
	}
	e := c.event(a.Video, a.Version)
	if e == nil {
		c.broken(CommandLost, "command %d (%s): version %d of video %s was returned, but there is no such event", a.Command, a.Kind, a.Version, a.Video)
		return
	}
	if e.State != a.State {
		c.broken(AnswerWrong, "command %d (%s): the returned version %d of video %s differs from event %s", a.Command, a.Kind, a.Version, a.Video, e.ID)
	}
	// An update returns its own title. A create that was repeated may return a
	// newer version, but version 1 must have its title.
	wrote := e
	if a.Kind == kindCreate {
		wrote = c.event(a.Video, 1)
	}
	if (a.Kind == kindCreate || a.Kind == kindUpdate) && (wrote == nil || wrote.Command != a.Command) {
		c.broken(CommandLost, "command %d (%s) returned version %d of video %s, which is not its own", a.Command, a.Kind, a.Version, a.Video)
	}
}
