package outbox

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// stepper steps a pace. Its clock moves only when a test moves it.
type stepper struct {
	*testing.T
	*pace
	now time.Time
}

// newStepper returns a pace that has been idle for long: the next poll is due in a second.
func newStepper(t *testing.T) *stepper {
	cfg := Config{Workers: 4, Batch: 800, PollInterval: time.Second}.WithDefaults()
	s := &stepper{t, newPace(cfg, time.Unix(0, 0)), time.Unix(0, 0)}
	for s.pause < time.Second {
		s.ends(s.claims(), nothing)
		s.pass(s.pollAt.Sub(s.now))
	}
	s.ends(s.claims(), nothing)
	return s
}

func (s *stepper) pass(d time.Duration) { s.now = s.now.Add(d) }

// claims begins the claim that is due.
func (s *stepper) claims() turn {
	s.Helper()
	if wait := s.wait(s.now); wait > 0 {
		s.Fatalf("after %s, the next claim waits for %s, want none", s.now.Sub(time.Unix(0, 0)), wait)
	}
	return s.begin(s.now)
}

// waits checks that no claim is due until a time from now.
func (s *stepper) waits(want time.Duration) {
	s.Helper()
	if got := s.wait(s.now); got != want {
		s.Fatalf("the next claim waits for %s, want %s", got, want)
	}
}

// ends records the end of a pass.
func (s *stepper) ends(t turn, r Result) {
	if r.Claimed {
		s.claimed(r.full)
	}
	s.end(s.now, t, r, nil)
}

func (s *stepper) fails(t turn) { s.end(s.now, t, Result{}, errBroken) }

var (
	errBroken = errors.New("broken")
	found     = Result{Claimed: true, Published: 5}
	full      = Result{Claimed: true, Published: 100, full: true}
	nothing   = Result{}
	leaves    = Result{Claimed: true, Published: 5, left: true}
	silence   = Result{Claimed: true, Unknown: 5, Outage: errBroken, left: true}
)

func TestPace(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string]func(*stepper){
		"a wake-up starts a claim at once, and one only": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), found)
			s.waits(time.Second)
		},
		"an event that is committed during a pass is looked for after it": func(s *stepper) {
			s.wake()
			first := s.claims()
			s.claimed(false)
			s.wake()
			s.ends(s.claims(), nothing) // the first pass has its lane
			s.ends(first, found)
			s.ends(s.claims(), found)
			s.ends(s.claims(), nothing)
			s.waits(4 * minPause)
		},
		"a wake-up that finds nothing is followed by a poll soon": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), nothing)
			s.waits(minPause)
			for pause := 2 * minPause; pause < time.Second; pause *= 2 {
				s.pass(s.wait(s.now))
				s.ends(s.claims(), nothing)
				s.waits(pause)
			}
		},
		"a pass that leaves something is followed by a poll soon": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), leaves)
			s.waits(minPause)
		},
		"polls that find nothing are rare": func(s *stepper) {
			for range 10 {
				s.waits(time.Second)
				s.pass(time.Second)
				s.ends(s.claims(), nothing)
			}
		},
		"polls go on until one finds nothing": func(s *stepper) {
			s.pass(time.Second)
			for range 10 {
				s.ends(s.claims(), found)
			}
			s.ends(s.claims(), nothing)
			s.waits(time.Second)
		},
		"wake-ups do not delay a poll": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), nothing)
			for range 4 {
				s.pass(time.Millisecond)
				if s.wait(s.now) > minPause {
					s.Error("the poll is later than before")
				}
				s.pollBy(s.now.Add(minPause))
			}
			s.waits(time.Millisecond)
		},
		"with a backlog all workers claim at once, one lane each": func(s *stepper) {
			s.wake()
			first := s.claims()
			s.claimed(true)
			for range 3 {
				if t := s.claims(); t.Lanes != 1 || !t.rush {
					s.Errorf("claim of %d lanes, want 1", t.Lanes)
				}
			}
			s.ends(first, full)
		},
		"a backlog of other lanes ends the rush, and not the share": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), full)
			s.ends(s.claims(), nothing)
			s.pass(time.Second)
			if t := s.claims(); t.Lanes != 1 || t.rush {
				s.Errorf("claim %+v, want one of one lane, alone", t)
			}
		},
		"a full pass is followed by a claim, though others found its lanes leased": func(s *stepper) {
			s.wake()
			first := s.claims()
			s.claimed(true)
			s.end(s.now, s.claims(), nothing, nil)
			s.end(s.now, first, full, nil)
			s.claims()
		},
		"a full pass is followed by a claim, though another emptied a lane meanwhile": func(s *stepper) {
			s.wake()
			first := s.claims()
			s.claimed(true)
			s.ends(s.claims(), found)
			s.ends(s.claims(), nothing)
			s.end(s.now, first, full, nil)
			s.claims()
		},
		"a claim of one lane is followed by one of all lanes": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), full)
			for s.wait(s.now) == 0 {
				s.ends(s.claims(), nothing)
			}
			s.pass(10 * time.Millisecond)
			s.wake()
			s.ends(s.claims(), found)
			if t := s.claims(); t.Lanes != Lanes {
				s.Errorf("claim of %d lanes, want all", t.Lanes)
			}
		},
		"a claim that is not full takes all lanes": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), full)
			s.ends(s.claims(), found)
			if t := s.claims(); t.Lanes != Lanes || t.rush {
				s.Errorf("claim %+v, want one of all lanes, alone", t)
			}
		},
		"an outage pauses everything, then lets single probes through": func(s *stepper) {
			s.wake()
			first := s.claims()
			s.claimed(false)
			s.wake()
			second := s.claims()
			s.ends(first, silence)
			s.wake()
			s.waits(untilChange) // the second is a probe itself
			s.ends(second, silence)
			for range 10 {
				s.wake()
				s.pass(s.resumeAt.Sub(s.now) - 1)
				s.waits(1)
				s.pass(1)
				probe := s.claims()
				if probe.Events != 1 || probe.Lanes != 1 {
					s.Errorf("the probe takes %d events of %d lanes", probe.Events, probe.Lanes)
				}
				s.pass(time.Minute)
				s.waits(untilChange)
				s.ends(probe, silence)
			}
			if pause := s.resumeAt.Sub(s.now); pause < time.Second/2 || pause > time.Second {
				s.Errorf("a pause after many probes is %s, want 0.5 to 1 s", pause)
			}
		},
		"only a response of the broker ends an outage": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), silence)
			for _, failed := range []bool{false, true, false} {
				s.pass(time.Second)
				if probe := s.claims(); failed {
					s.fails(probe)
				} else {
					s.ends(probe, nothing)
				}
				if !s.open {
					s.Fatal("the breaker is closed without a response")
				}
			}
			s.pass(time.Second)
			s.ends(s.claims(), Result{Claimed: true, Refused: 1, left: true})
			if t := s.claims(); t.Events == 1 {
				s.Error("a probe after the response")
			}
		},
		"failed passes pause everything, longer and longer": func(s *stepper) {
			s.wake()
			s.fails(s.claims())
			for _, ms := range []int{5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
				longest := time.Duration(ms) * time.Millisecond
				s.wake() // does not shorten it
				if pause := s.wait(s.now); pause < longest/2 || pause > longest {
					s.Errorf("a pause is %s, want %s to %s", pause, longest/2, longest)
				}
				s.pass(s.wait(s.now))
				s.fails(s.claims())
			}
		},
		"a pass that succeeds ends the failures": func(s *stepper) {
			for range 10 {
				s.wake()
				s.fails(s.claims())
				s.pass(minPause)
				s.ends(s.claims(), nothing)
				s.pass(time.Second)
			}
		},
		"after stop, claims go on until one finds nothing": func(s *stepper) {
			s.wake()
			first := s.claims()
			s.stop(s.now)
			s.ends(s.claims(), nothing)
			s.isStopped(false) // the first may leave something
			s.ends(first, found)
			s.ends(s.claims(), found)
			s.ends(s.claims(), nothing)
			s.isStopped(true)
		},
		"after stop, an outage is the end": func(s *stepper) {
			s.stop(s.now)
			s.ends(s.claims(), silence)
			s.wake()
			s.isStopped(true)
		},
		"after stop, a failed pass is the end": func(s *stepper) {
			s.stop(s.now)
			s.fails(s.claims())
			s.wake()
			s.isStopped(true)
		},
		"after stop, half of the time is for claims": func(s *stepper) {
			s.stop(s.now)
			s.pass(StopTimeout/2 - 1)
			last := s.claims()
			s.pass(1)
			s.wake()
			s.isStopped(false)
			s.ends(last, found)
			s.isStopped(true)
		},
		"stop does not end the pause of an outage": func(s *stepper) {
			s.wake()
			s.ends(s.claims(), silence)
			s.stop(s.now)
			s.isStopped(true)
		},
		"stop ends the pause after a failure": func(s *stepper) {
			s.wake()
			s.fails(s.claims())
			s.stop(s.now)
			s.ends(s.claims(), nothing)
			s.isStopped(true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps(newStepper(t))
		})
	}
}

func (s *stepper) isStopped(want bool) {
	s.Helper()
	if got := s.stopped(s.now); got != want {
		s.Errorf("stopped() = %t, want %t", got, want)
	}
}

// A backlog begins with an eighth of a batch. The limit doubles while the broker responds soon, halves when it does not,
// and starts again with the next backlog.
func TestLimitFollowsTheBroker(t *testing.T) {
	t.Parallel()
	s := newStepper(t)
	slow, late := full, full
	slow.took = s.cfg.RequestTimeout()/4 + 1
	late.Unknown = 1
	s.wake()
	for _, step := range []struct {
		events int
		result Result
	}{
		{100, full},
		{200, full},
		{400, full},
		{800, full},
		{800, slow},
		{400, late},
		{200, full},
		{400, slow},
		{200, slow},
		{100, slow},
		{100, late},
		{50, nothing},
	} {
		turn := s.claims()
		if turn.Events != step.events {
			t.Fatalf("a claim takes %d events, want %d", turn.Events, step.events)
		}
		s.ends(turn, step.result)
	}
	for range 2 { // the first is of one lane, whose events tell nothing about the others
		s.wake()
		s.ends(s.claims(), found)
	}
	if s.events != 100 {
		t.Errorf("after the backlog a claim takes %d events, want 100", s.events)
	}
	s.wake()
	before := s.claims() // several passes of one limit count once
	also := s.begin(s.now)
	s.ends(before, full)
	s.ends(also, full)
	if s.events != 200 {
		t.Errorf("after two passes with 100 events a claim takes %d, want 200", s.events)
	}
}

// Pending events of a blocked aggregate follow its deferred events if the claim has all of these. In the
// table /0 is a deferred event, /1 one that was refused before, and ! a blocked event.
func TestClaimUnblocks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, events string
		maxBytes     int64
		want         string
	}{
		{"nothing is deferred", "a1 b1!", 100, "a1 b1!"},
		{"all of the aggregate", "a1/0 a2/0 a3! a4!", 100, "a1/0 a2/0 a3 a4"},
		{"another aggregate", "a1/0 a2! b1!", 100, "a1/0 a2 b1!"},
		{"refused before", "a1/1 a2!", 100, "a1/1 a2!"},
		{"each by itself", "a1/1 b1/0 a2! b2!", 100, "a1/1 b1/0 a2! b2"},
		{"as many as the claim may have", "a1/0 a2/0 a3/0 a4!", 100, "a1/0 a2/0 a3/0 a4!"},
		{"as many bytes as the claim may have", "a1/0 a2/0 a3!", 4, "a1/0 a2/0 a3!"},
		{"another lane has as many as it may have", "a1/0 a2/0 a3/0 C1/0 C2!", 100, "a1/0 a2/0 a3/0 C1/0 C2"},
	} {
		claim := claimOf(test.events, Limits{Events: 5, Bytes: test.maxBytes})
		var got []string
		for i, name := range strings.Fields(test.events) {
			if name = strings.TrimSuffix(name, "!"); claim.Events[i].Behind {
				name += "!"
			}
			got = append(got, name)
		}
		if got := strings.Join(got, " "); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// A claim is full if one of its lanes has used its share, of events or of bytes. The span of a lane has its pending events.
func TestClaimIsFull(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		events string
		share  Limits
		full   bool
		spans  [2]Span
	}{
		{"a1 b1 C1", Limits{Events: 3, Bytes: 100}, false, [2]Span{{0, 1, 2}, {1, 3, 3}}},
		{"a1 C1 b1 a2", Limits{Events: 3, Bytes: 100}, true, [2]Span{{0, 1, 4}, {1, 2, 2}}},
		{"a1 b1", Limits{Events: 9, Bytes: 4}, true, [2]Span{{0, 1, 2}, {Lane: 1}}},
		{"a1/0 b1/0 C1", Limits{Events: 4, Bytes: 100}, true, [2]Span{{Lane: 0}, {1, 3, 3}}},
	} {
		claim := claimOf(test.events, test.share)
		if claim.Full != test.full || [2]Span(claim.Spans) != test.spans {
			t.Errorf("%s within %+v: full = %t, spans %+v, want %t, %+v", test.events, test.share, claim.Full, claim.Spans, test.full, test.spans)
		}
	}
}

// claimOf makes a claim of two lanes. Events with a name in capitals are in lane 1.
func claimOf(names string, share Limits) (claim Claim) {
	var deferred, pending [2][]Claimed
	for i, name := range strings.Fields(names) {
		e := Claimed{Seq: int64(i + 1), Attempts: strings.Count(name, "/1"), Blocked: strings.HasSuffix(name, "!")}
		e.AggregateID, e.Payload = name[:1], []byte(name[:2])
		lane := 0
		if name[0] < 'a' {
			lane = 1
		}
		if strings.Contains(name, "/") {
			deferred[lane] = append(deferred[lane], e)
		} else {
			pending[lane] = append(pending[lane], e)
		}
	}
	for lane := range deferred {
		claim.Add(int16(lane), deferred[lane], pending[lane], share)
	}
	return claim
}
