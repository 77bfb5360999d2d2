package console

import (
	"fmt"
	"time"
)

// patience is how old a pending event may be before the console calls it a problem.
const patience = time.Minute

// trouble is something that a person should know.
type trouble struct{ Text, Link string }

// Problems returns what is wrong, the worst first.
func (s snapshot) Problems() []trouble {
	var all []trouble
	add := func(is bool, link, format string, args ...any) {
		if is {
			all = append(all, trouble{Text: fmt.Sprintf(format, args...), Link: link})
		}
	}
	add(s.CommandsErr != "", "", "The command side cannot be read: %s.", s.CommandsErr)
	add(s.QueriesErr != "" && s.QueriesErr != s.CommandsErr, "", "The query side cannot be read: %s.", s.QueriesErr)
	add(s.HasProcess && s.Process.Err != "", "", "The metrics of the process cannot be read: %s.", s.Process.Err)
	add(s.HasProcess && s.Process.Err == "" && s.Process.Breaker, "", "The publisher considers the broker unavailable.")
	oldest := s.Commands.Oldest()
	add(s.CommandsErr == "" && oldest > patience, "", "The oldest pending event waits for %s.", duration(oldest))
	c, q := s.Commands, s.Queries
	add(c.Parked > 0, "/blocked", "%s parked: the broker refused an event, and a person must decide.", many(c.Parked, "aggregate is", "aggregates are"))
	add(c.Blocked > c.Parked && c.Parked == 0, "/blocked", "%s blocked, and tried again by itself.", many(c.Blocked, "aggregate is", "aggregates are"))
	add(q.Quarantined > 0, "/quarantine", "%s in quarantine, and could not be applied.", many(q.Quarantined, "message is", "messages are"))
	return all
}

func many(n int64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return capped(n) + " " + more
}

// MostPending returns the number of events that fills the bar of a lane.
func (s snapshot) MostPending() float64 {
	const least = 20
	most := int64(least)
	for _, lane := range s.Commands.Lanes {
		most = max(most, lane.Pending)
	}
	return float64(most)
}

// flow is an arrow between two places of the U.
type flow struct {
	Place        string
	Moves, Stuck bool
}

// Flows returns the arrows, along the U.
func (s snapshot) Flows() []flow {
	stuck := s.HasProcess && s.Process.Breaker
	return []flow{
		{Place: "down", Moves: s.Rate.Commands > 0},
		{Place: "right", Moves: s.Rate.Sent > 0, Stuck: stuck},
		{Place: "right2", Moves: s.Rate.Applied > 0},
		{Place: "up", Moves: s.Rate.Applied > 0},
	}
}
