package outbox

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/envelope"
)

// stepper steps a plan. Its clock moves only when a test moves it.
type stepper struct {
	*testing.T
	*plan
	now time.Time
}

// newStepper returns a plan that has been idle for long: the next poll is due in a second.
func newStepper(t *testing.T, workers int) *stepper {
	cfg := Config{Workers: workers, Batch: 100, PollInterval: time.Second, ProbeInterval: time.Second, StopTimeout: 2 * time.Second}
	s := &stepper{t, newPlan(cfg, time.Unix(0, 0)), time.Unix(0, 0)}
	for s.pause < time.Second {
		s.starts(AnyLane)
		s.ends(AnyLane, Result{}, nil)
		s.pass(s.pollAt.Sub(s.now))
	}
	s.starts(AnyLane)
	s.ends(AnyLane, Result{}, nil)
	return s
}

func (s *stepper) pass(d time.Duration) { s.now = s.now.Add(d) }

func (s *stepper) wakes(lanes ...int16) {
	for _, lane := range lanes {
		s.woken |= setOf(lane)
	}
}

// starts lets the plan start passes until none may start, and compares their lanes.
func (s *stepper) starts(want ...int16) {
	s.Helper()
	var lanes []int16
	for {
		j, wait := s.next(s.now)
		if wait > 0 {
			break
		}
		lanes = append(lanes, j.lane)
		if probe := j.batch == 1; probe != s.open || j.batch != 1 && j.batch != s.cfg.Batch {
			s.Errorf("a pass takes %d events, with the breaker open: %t", j.batch, s.open)
		}
	}
	if diff := cmp.Diff(want, lanes); diff != "" {
		s.Fatalf("after %s, passes start (-want +got):\n%s", s.now.Sub(time.Unix(0, 0)), diff)
	}
}

func (s *stepper) ends(lane int16, r Result, failure error) {
	s.end(s.now, ended{job: job{lane: lane}, Result: r, failure: failure})
}

var (
	errBroken = errors.New("broken")
	found     = Result{Claimed: true, Published: 5}
	full      = Result{Claimed: true, Published: 100, left: true}
	nothing   = Result{}
	silence   = Result{Claimed: true, Unknown: 5, Outage: errBroken, left: true}
)

func TestPlan(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string]func(*stepper){
		"a woken lane gets a pass at once, and one only": func(s *stepper) {
			s.wakes(3)
			s.starts(3)
			s.ends(3, found, nil)
			s.starts()
			s.pass(minPause)
			s.starts()
		},
		"lanes are served at the same time, by as many workers as there are": func(s *stepper) {
			s.wakes(1, 2, 3, 4, 5)
			s.starts(1, 2, 3, 4)
			s.ends(2, found, nil)
			s.starts(5)
		},
		"a lane that is woken while it is served gets another pass afterwards": func(s *stepper) {
			s.wakes(3)
			s.starts(3)
			s.wakes(3)
			s.starts()
			s.ends(3, found, nil)
			s.starts(3)
		},
		"a lane that a poll has gets another pass at once after it": func(s *stepper) {
			s.pass(time.Second)
			s.starts(AnyLane)
			s.wakes(3)
			s.starts(3)
			s.ends(3, nothing, nil)
			s.ends(AnyLane, found, nil)
			s.starts(AnyLane)
		},
		"polls that find nothing are rare, whatever the number of workers": func(s *stepper) {
			for range 10 {
				s.pass(time.Second - 1)
				s.starts()
				s.pass(1)
				s.starts(AnyLane)
				s.ends(AnyLane, nothing, nil)
			}
		},
		"a poll does not wait for one that is slow": func(s *stepper) {
			s.pass(time.Second)
			s.starts(AnyLane)
			s.pass(time.Second)
			s.starts(AnyLane)
		},
		"polls go on until one finds nothing, and then soon": func(s *stepper) {
			s.pass(time.Second)
			for range 10 {
				s.starts(AnyLane)
				s.ends(AnyLane, found, nil)
			}
			s.starts(AnyLane)
			s.ends(AnyLane, nothing, nil)
			for pause := 2 * minPause; pause < time.Second; pause *= 2 {
				s.starts()
				s.pass(pause)
				s.starts(AnyLane)
				s.ends(AnyLane, nothing, nil)
			}
		},
		"after a poll that found work, all workers poll": func(s *stepper) {
			s.pass(time.Second)
			s.starts(AnyLane)
			s.ends(AnyLane, full, nil)
			s.starts(AnyLane)
			for range 3 {
				s.pass(s.pollAt.Sub(s.now))
				s.starts(AnyLane)
			}
			if took := s.now.Sub(time.Unix(0, 0)); took > 5*time.Second {
				s.Errorf("all work after %s", took)
			}
			for range 4 {
				s.ends(AnyLane, full, nil)
				s.starts(AnyLane)
			}
		},
		"a pass that found nothing for its wake-up is followed by a poll soon": func(s *stepper) { pollsSoonAfter(s, nothing, nil) },
		"a pass that leaves something is followed by a poll soon":              func(s *stepper) { pollsSoonAfter(s, full, nil) },
		"wake-ups do not delay a poll": func(s *stepper) {
			for range 4 {
				s.wakes(3)
				s.starts(3)
				s.ends(3, nothing, nil)
				s.pass(time.Millisecond)
			}
			s.wakes(3)
			s.pass(time.Millisecond)
			s.starts(AnyLane, 3)
		},
		"wake-ups without end do not hold up a poll": func(s *stepper) {
			s.wakes(1, 2, 3, 4, 5)
			s.starts(1, 2, 3, 4)
			s.pass(time.Second)
			s.ends(1, found, nil)
			s.starts(AnyLane)
		},
		"polls without end do not hold up a woken lane": func(s *stepper) {
			s.pass(time.Second)
			s.starts(AnyLane)
			s.wakes(1, 2, 3, 4)
			s.starts(1, 2, 3)
			s.pass(time.Second)
			s.ends(1, found, nil)
			s.starts(4)
		},
		"woken lanes take turns": func(s *stepper) {
			s.wakes(1, 2, 3, 4, 7)
			s.starts(1, 2, 3, 4)
			s.wakes(1)
			s.ends(1, found, nil)
			s.starts(7)
			s.ends(7, found, nil)
			s.starts(1)
		},
		"an outage pauses everything, then lets single probes through": func(s *stepper) {
			s.wakes(1, 2)
			s.starts(1, 2)
			s.ends(1, silence, nil)
			s.wakes(3, 4)
			s.pass(time.Second)
			s.starts() // lane 2 is a probe itself
			s.ends(2, silence, nil)
			for range 10 {
				s.starts()
				s.pass(s.resumeAt.Sub(s.now) - 1)
				s.starts()
				s.pass(1)
				s.wakes(3, 4)
				s.starts(AnyLane)
				s.pass(time.Minute)
				s.starts()
				s.ends(AnyLane, silence, nil)
			}
			if pause := s.resumeAt.Sub(s.now); pause < time.Second/2 || pause > time.Second {
				s.Errorf("a pause after many probes is %s, want 0.5 to 1 s", pause)
			}
		},
		"only a response of the broker ends an outage": func(s *stepper) {
			s.wakes(3)
			s.starts(3)
			s.ends(3, silence, nil)
			for _, e := range []ended{{Result: nothing}, {failure: errBroken}, {Result: nothing}} {
				s.pass(time.Second)
				s.starts(AnyLane)
				s.ends(AnyLane, e.Result, e.failure)
				if !s.open {
					s.Fatal("the breaker is closed without a response")
				}
			}
			s.pass(time.Second)
			s.starts(AnyLane)
			s.ends(AnyLane, Result{Claimed: true, Refused: 1, left: true}, nil)
			s.wakes(1, 2)
			s.starts(AnyLane, 1, 2)
		},
		"failed passes pause everything, longer and longer": func(s *stepper) {
			s.wakes(3)
			s.starts(3)
			s.ends(3, nothing, errBroken)
			for _, ms := range []int{5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
				longest := time.Duration(ms) * time.Millisecond
				if pause := s.resumeAt.Sub(s.now); pause < longest/2 || pause > longest {
					s.Errorf("a pause is %s, want %s to %s", pause, longest/2, longest)
				}
				s.pass(s.resumeAt.Sub(s.now) - 1)
				s.starts()
				s.pass(minPause)
				s.starts(AnyLane)
				s.ends(AnyLane, nothing, errBroken)
			}
		},
		"a pass that succeeds ends the failures": func(s *stepper) {
			for range 10 {
				s.wakes(3)
				s.starts(3)
				s.ends(3, nothing, errBroken)
				s.pass(minPause)
				s.starts(AnyLane)
				s.ends(AnyLane, nothing, nil)
			}
		},
		"after stop, passes go on until a poll finds nothing": func(s *stepper) {
			s.wakes(3)
			s.starts(3)
			s.stop(s.now)
			s.starts(AnyLane)
			s.ends(AnyLane, nothing, nil)
			s.starts()
			s.isStopped(false)
			s.ends(3, full, nil)
			s.starts(AnyLane)
			s.ends(AnyLane, found, nil)
			s.starts(AnyLane)
			s.wakes(5)
			s.starts(5)
			s.ends(AnyLane, nothing, nil)
			s.ends(5, nothing, nil)
			s.starts()
			s.isStopped(true)
		},
		"after stop, an outage is the end":     func(s *stepper) { stopsAfter(s, silence, nil) },
		"after stop, a failed pass is the end": func(s *stepper) { stopsAfter(s, nothing, errBroken) },
		"after stop, half of the time is for passes": func(s *stepper) {
			s.stop(s.now)
			s.pass(time.Second - 1)
			s.starts(AnyLane)
			s.pass(1)
			s.ends(AnyLane, found, nil)
			s.wakes(3)
			s.starts()
			s.isStopped(true)
		},
		"stop does not end the pause of an outage": func(s *stepper) {
			s.wakes(3)
			s.starts(3)
			s.ends(3, silence, nil)
			s.stop(s.now)
			s.starts()
			s.isStopped(true)
		},
		"stop ends the pause after a failure": func(s *stepper) {
			s.wakes(3)
			s.starts(3)
			s.ends(3, nothing, errBroken)
			s.stop(s.now)
			s.starts(AnyLane)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps(newStepper(t, 4))
		})
	}
}

// pollsSoonAfter checks that a poll is due minPause after a pass of a woken lane, and not before.
func pollsSoonAfter(s *stepper, r Result, failure error) {
	s.Helper()
	s.wakes(3)
	s.starts(3)
	s.ends(3, r, failure)
	s.pass(minPause - 1)
	s.starts()
	s.pass(1)
	s.starts(AnyLane)
}

// stopsAfter checks that no pass starts after a pass with this result, though other passes are under way.
func stopsAfter(s *stepper, r Result, failure error) {
	s.Helper()
	s.stop(s.now)
	s.wakes(2, 3)
	s.starts(AnyLane, 2, 3)
	s.ends(AnyLane, r, failure)
	s.ends(3, found, nil)
	s.wakes(3)
	s.starts()
	s.isStopped(false)
	s.ends(2, found, nil)
	s.starts()
	s.isStopped(true)
}

func (s *stepper) isStopped(want bool) {
	s.Helper()
	if got := s.stopped(); got != want {
		s.Errorf("stopped() = %t, want %t", got, want)
	}
}

// Wake-ups of many lanes at once are all received, in any order.
func TestConcurrentWakeUps(t *testing.T) {
	t.Parallel()
	publisher, err := New(nil, nil, Config{}, nil, noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	var received [Lanes]chan struct{}
	var writers sync.WaitGroup
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} { // each in its lane
		aggregate := envelope.Aggregate{Type: "letter", ID: id}
		wakeUp := make(chan struct{})
		received[Lane(aggregate)] = wakeUp
		writers.Go(func() {
			for range 200 {
				publisher.Wake(aggregate)
				<-wakeUp // blocks for ever if the wake-up is lost
			}
		})
	}
	for total := 0; total < 200*Lanes; {
		lanes := <-publisher.wakeUps
		for lane := range int16(Lanes) {
			if lanes&setOf(lane) != 0 {
				received[lane] <- struct{}{}
				total++
			}
		}
	}
	writers.Wait()
}
