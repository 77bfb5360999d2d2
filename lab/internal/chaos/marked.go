package chaos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Mark is an event that an operator's command has made pending again, or a snapshot
// that it has made pending.
type Mark struct {
	Seq    int64 // of its pending row
	Event  uuid.UUID
	Video  uuid.UUID
	Repeat string
	Known  int64     // version of the video at that time: the events up to it are in front
	Tx     int64     // of the transaction
	At     time.Time // when the command began, or earlier
}

// marks has the marks of one video, in the order of their seqs.
type marks struct {
	all    []Mark
	next   int                     // the first that was not published yet
	latest map[uuid.UUID]time.Time // when the newest marked message of an event was published
}

func (c *checker) marked() map[uuid.UUID]*marks {
	marked := make(map[uuid.UUID]*marks)
	for _, m := range c.h.Marks {
		if marked[m.Video] == nil {
			marked[m.Video] = &marks{latest: map[uuid.UUID]time.Time{}}
		}
		marked[m.Video].all = append(marked[m.Video].all, m)
	}
	for _, m := range marked {
		slices.SortFunc(m.all, func(a, b Mark) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return marked
}

// checkMarked finds the mark of a message: the next one of its video, after the first
// publication of everything that was pending before it. Otherwise the message repeats one
// that was published before, and it returns what only a fault explains. newest is the
// newest version that was published, and late means that it came after the purge.
func (c *checker) checkMarked(m *marks, s Sighting, at time.Time, newest int64, late bool) []repeat {
	if m == nil || !slices.ContainsFunc(m.all, func(mark Mark) bool { return mark.Event == s.Event && mark.Repeat == s.Repeat }) {
		c.broken(RepeatUnasked, "message %s of event %s, version %d of video %s: %s=%s", s.MessageID, s.Event, s.Version, s.Video, attrRepeat, s.Repeat)
		return nil
	}
	c.verdict.Figures.Repeats++
	before, again := m.latest[s.Event]
	if m.take(s.Event, at, newest, c.purges[s.Video]) {
		m.latest[s.Event] = at
		if late {
			return []repeat{{at, at, AfterPurge}}
		}
		return nil
	}
	if !again {
		c.broken(RepeatOutOfOrder, "message %s of event %s, version %d of video %s, came after version %d", s.MessageID, s.Event, s.Version, s.Video, newest)
	}
	m.latest[s.Event] = at
	if again {
		return []repeat{{at, before, DuplicateUncaused}}
	}
	return nil
}

// take reports whether the next mark belongs to the event, and then goes on to the mark
// behind it. It passes over marks that a purge has erased.
func (m *marks) take(event uuid.UUID, at time.Time, newest int64, purge *EventRow) bool {
	for i := m.next; i < len(m.all); i++ {
		mark := m.all[i]
		if mark.Event == event && mark.Known <= newest && !at.Before(mark.At) {
			m.next = i + 1
			return true
		}
		if purge == nil || newest < purge.Version {
			return false
		}
	}
	return false
}

// checkMarks finds marks without a message, and marks of one transaction that are not in the
// order of versions. Marks of a purged video may be erased.
func (c *checker) checkMarks(marked map[uuid.UUID]*marks) {
	for video, m := range marked {
		if c.purges[video] == nil && m.next < len(m.all) {
			c.broken(RepeatLost, "%d of video %s, the first is event %s", len(m.all)-m.next, video, m.all[m.next].Event)
		}
		for i := 1; i < len(m.all); i++ {
			a, b := c.events[m.all[i-1].Event], c.events[m.all[i].Event]
			if m.all[i-1].Tx == m.all[i].Tx && a != nil && b != nil && a.Version > b.Version {
				c.broken(RepeatOutOfOrder, "version %d of video %s was asked for in front of version %d", a.Version, video, b.Version)
			}
		}
	}
}

// readMarks reads all marks, without their times.
func readMarks(ctx context.Context, c conn) ([]Mark, error) {
	rows, err := c.Query(ctx, `SELECT seq, event_id::text, video, repeat, known, tx FROM chaos.marks`)
	if err != nil {
		return nil, fmt.Errorf("read marks: %w", err)
	}
	marks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Mark, err error) {
		var event, video string
		if err = row.Scan(&m.Seq, &event, &video, &m.Repeat, &m.Known, &m.Tx); err != nil {
			return m, err
		}
		if m.Event, err = uuid.Parse(event); err == nil {
			m.Video, err = uuid.Parse(video)
		}
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("read marks: %w", err)
	}
	return marks, nil
}
