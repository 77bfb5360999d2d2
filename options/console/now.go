package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/options/console/internal/sqlcgen"
)

// sample is a measurement of both sides. Every page shows its Problems.
type sample struct {
	Commands    commandSample
	CommandsErr string
	Queries     querySample
	QueriesErr  string
	Rights      rights
	Behind      string    // a consumer that lacks a published event which is older than patience; empty: there is none
	At          time.Time // when it began
}

const (
	// sampleTimeout is how long a sample may take.
	sampleTimeout = 5 * time.Second
	// sampleAge is how old the sample on a page may be.
	sampleAge = time.Second
)

// sample returns a sample that is at most sampleAge old. Concurrent calls share it.
func (s *server) sample(ctx context.Context) sample {
	s.sampling.Lock()
	defer s.sampling.Unlock()
	if time.Since(s.sampled) > sampleAge {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sampleTimeout) // other requests use it, too
		defer cancel()
		s.last = s.measure(ctx)
		s.sampled = time.Now() // not m.At: a sample of a database that does not answer takes long
	}
	return s.last
}

func (s *server) measure(ctx context.Context) (m sample) {
	m.At = time.Now()
	var err error
	if m.Commands, err = s.sampleCommands(ctx); err != nil {
		m.CommandsErr = reasonOf(err)
	}
	if m.Queries, err = s.sampleQueries(ctx); err != nil {
		m.QueriesErr = reasonOf(err)
	}
	m.Rights = s.readRights(ctx)
	if m.CommandsErr == "" && m.QueriesErr == "" {
		s.describe(ctx, m.Commands.Newest, m.Queries.Sought)
		if m.Behind, err = s.behind(ctx, m.Commands.Published, m.Queries.Sought); err != nil {
			m.QueriesErr = reasonOf(err)
		}
	}
	return m
}

// describe adds the titles of writes, and when they were applied, if that is known.
func (s *server) describe(ctx context.Context, writes []write, sought time.Time) {
	ids, eventIDs, events := make([]string, len(writes)), make([]uuid.UUID, len(writes)), make([]event, len(writes))
	for i, w := range writes {
		ids[i], eventIDs[i], events[i].ID = w.Aggregate.ID, w.ID, w.ID
	}
	titles := s.titlesOf(ctx, ids)
	_ = s.follow(ctx, events) // after an error, no event counts as applied
	skips, _ := sqlcgen.New(s.commands).ListSkipped(ctx, eventIDs)
	for i := range writes {
		writes[i].Title, writes[i].Before = titles[writes[i].Aggregate.ID].Title, writes[i].Time.Before(sought)
		writes[i].Skipped = slices.Contains(skips, writes[i].ID)
		if len(events[i].Applied) > 0 && !writes[i].Before {
			writes[i].Applied = events[i].Applied[0].Time
		}
	}
}

// now shows the overview.
func (s *server) now(w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	if m := s.sample(r.Context()); m.CommandsErr != "" || m.QueriesErr != "" {
		status = http.StatusServiceUnavailable
	}
	s.show(w, r, status, "now", "now", "Now", nil)
}

// leastDays is how many days maintenance keeps ahead, but for the hour after midnight.
const leastDays = 6

// patience is how long an event may be pending, or not applied, before the console calls it a problem.
const patience = time.Minute

// trouble is something that a person should know, with the page that shows it.
type trouble struct{ Text, Link string }

// Problems returns what is wrong, the worst first.
func (m sample) Problems() []trouble {
	var all []trouble
	add := func(is bool, link, format string, args ...any) {
		if is {
			all = append(all, trouble{Text: fmt.Sprintf(format, args...), Link: link})
		}
	}
	c, q := m.Commands, m.Queries
	add(m.CommandsErr != "", "/#commands", "The command side cannot be read: %s.", m.CommandsErr)
	add(m.QueriesErr != "" && m.QueriesErr != m.CommandsErr, "/#view", "The query side cannot be read: %s.", m.QueriesErr)
	// Not how long it waits: a screen reader reads the bar when its text changes.
	add(c.Waits > patience, "/#outbox", "The oldest pending event waits since %s.", c.At.Add(-c.Waits).UTC().Format("2006-01-02 15:04 UTC"))
	add(m.Behind != "" && c.Note != "", "/#view", "Events of more than a minute ago are not applied by %s: do the reader of the log, and a process with the role projector, run?", m.Behind)
	add(m.Behind != "" && c.Note == "", "/#view", "Published events of more than a minute ago are not applied by %s: does a process with the role projector run?", m.Behind)
	blocked := many(c.Blocked, "aggregate is", "aggregates are")
	add(c.Parked > 0, "/stuck", "%s blocked, because the broker refused an event: %s of them parked, for a person to decide.", blocked, capped(c.Parked))
	add(c.Blocked > 0 && c.Parked == 0, "/stuck", "%s blocked, and tried again by itself.", blocked)
	add(q.Quarantined > 0, "/stuck", "%s in quarantine, and could not be applied.", many(q.Quarantined, "message is", "messages are"))
	for _, found := range q.Comparisons {
		add(found.Differences > 0, "/#view", "%s from their owner, of type %s: `server projection compare` shows how.", many(found.Differences, "entry differs", "entries differ"), found.Type)
	}
	add(c.Replaced || q.Replaced, "/#view", "A database was replaced, as by a failover: a projection may contradict its owner. See the runbook of DatabaseReplaced.")
	add(m.CommandsErr == "" && c.DaysAhead < leastDays, "/#outbox", "The outbox has partitions for %d more days: its maintenance does not run, and without one no event can be written.", c.DaysAhead)
	add(c.Late > 0, "/#commands", "%s due for more than a minute: does a process with the role reactor run?", many(c.Late, "timer is", "timers are"))
	add(c.Failing > 0, "/#commands", "%s failed, to be tried again within an hour: see the runbook of TimersFail.", many(c.Failing, "timer has", "timers have"))
	return all
}

// Stuck returns how many aggregates and messages are stuck.
func (m sample) Stuck() int64 { return m.Commands.Blocked + m.Queries.Quarantined }

// Alerts reports whether something waits for a person.
func (m sample) Alerts() bool { return m.Commands.Parked > 0 || m.Queries.Quarantined > 0 }

func many(n int64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return capped(n) + " " + more
}

func (r rights) text() string {
	switch {
	case r.Err != nil:
		return "no database"
	case r.Commands || r.Queries:
		return r.User + " may act"
	}
	return r.User + " only reads"
}

func (r rights) help() string {
	switch {
	case r.Err != nil:
		return reasonOf(r.Err)
	case r.Commands && r.Queries:
		return "The database user may act on both sides."
	case r.Commands:
		return "The database user may act on the command side only."
	case r.Queries:
		return "The database user may act on the query side only."
	}
	return "The database user may only read. To act, start the console with a user that has the roles of the service."
}
