package chaos

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// scheduler runs up to two faults of different groups at the same time. A fault
// whose recovery is measured runs alone. Beside an action of an operator, the scheduler
// runs one more fault.
type scheduler struct {
	ctx    context.Context // of the run; the scheduler lives as long as one call
	lab    *lab
	groups map[string]*sync.Mutex
	slots  chan struct{}
	beside []fault // one of them occurs beside each action of an operator
	active sync.WaitGroup

	mu  sync.Mutex
	err error // guarded by mu: the first error
}

func newScheduler(ctx context.Context, l *lab) *scheduler {
	return &scheduler{
		ctx: ctx, lab: l, slots: make(chan struct{}, 2), beside: l.disturbances(),
		groups: map[string]*sync.Mutex{groupProcess: {}, groupBroker: {}, groupDatabase: {}, groupOperator: {}},
	}
}

// inject injects a fault. If its recovery is measured, inject returns after the
// recovery. Otherwise the fault continues after inject has returned.
func (s *scheduler) inject(f fault, r *rand.Rand) {
	if f.recovery != NoRecovery {
		s.wait()
		alone := s.lab.calm(s.ctx)
		record := s.run(f, r, alone)
		s.lab.recovered(s.ctx, &record)
		s.lab.record(record)
		return
	}
	pause := between(r, 50*time.Millisecond, 300*time.Millisecond) // drawn before the fault uses r
	if f.group == groupOperator {
		draw := rand.New(rand.NewPCG(r.Uint64(), 0))
		s.active.Go(func() { s.disturb(draw) })
	}
	group := s.groups[f.group]
	group.Lock()
	s.slots <- struct{}{}
	s.active.Go(func() {
		defer func() { <-s.slots }()
		defer group.Unlock()
		s.lab.record(s.run(f, r, false))
	})
	sleep(s.ctx, pause)
}

// disturb injects one of the faults that occur beside actions of operators.
func (s *scheduler) disturb(r *rand.Rand) {
	f := pick(r, s.beside)
	sleep(s.ctx, between(r, 0, 400*time.Millisecond)) // a command takes about as long
	group := s.groups[f.group]
	group.Lock()
	defer group.Unlock()
	s.lab.record(s.run(f, r, false))
}

// insist repeats faults that have not taken effect, up to three times.
func (s *scheduler) insist(all []fault, draw func() *rand.Rand) {
	for range 3 {
		for _, f := range all {
			if s.wait(); s.ctx.Err() == nil && s.failed() == nil && !s.lab.happened(f.kind) {
				s.inject(f, draw())
			}
		}
	}
	s.wait()
}

func (s *scheduler) run(f fault, r *rand.Rand, alone bool) FaultRecord {
	record := FaultRecord{Kind: f.kind, Alone: alone, Recovery: f.recovery, Struck: time.Now(), MayFail: f.group == groupDatabase}
	s.lab.timeline.Info("fault begins", "kind", f.kind)
	err := f.inject(s.ctx, s.lab, r, &record)
	record.Ended = time.Now()
	s.lab.timeline.Info("fault ends", "kind", f.kind, "target", record.Target, "ms_since_struck", record.Ended.Sub(record.Struck).Milliseconds(), "missing", record.Missing)
	if err != nil && s.ctx.Err() == nil {
		s.lab.timeline.Info("fault failed", "kind", f.kind, "err", err.Error())
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.err = err
		}
	}
	return record
}

// wait waits until no fault is in force.
func (s *scheduler) wait() { s.active.Wait() }

func (s *scheduler) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// patience is how long the lab waits for a recovery. A longer recovery shows in the
// figures, or at the end of the run.
const patience = 8 * time.Second

// stuckAfter is how long events may stay pending while no fault is in force. It is
// several times the longest pause, lease or retry of the service in the lab.
const stuckAfter = 30 * time.Second

// calm waits until all pending events are published and publishing continues, so that
// a measurement is about one fault. It returns false if that takes longer than patience.
// Events that stay pending are a problem: a later fault, such as a restart, would hide them.
func (l *lab) calm(ctx context.Context) bool {
	deadline := time.Now().Add(patience)
	if l.drained(ctx, deadline) {
		return after(ctx, l.broker.lastPublished, time.Now(), deadline)
	}
	if stuck(ctx, l.drained) {
		l.problem(StuckPending, "for %s not all was published that was pending, and no fault was in force", stuckAfter)
	}
	return false
}

// stuck reports whether events stay pending for stuckAfter. drained also
// returns false if the database is unreachable, so stuck calls it again until that
// time is over.
func stuck(ctx context.Context, drained func(context.Context, time.Time) bool) bool {
	for deadline := time.Now().Add(stuckAfter); !drained(ctx, deadline); {
		if time.Now().After(deadline) {
			return true
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return false
		}
	}
	return false
}

// recovered waits until the service and every process have recovered from a
// measured fault.
func (l *lab) recovered(ctx context.Context, record *FaultRecord) {
	l.back(ctx, record)
	deadline := time.Now().Add(patience)
	after(ctx, l.broker.lastPublished, record.Ended, deadline)
	l.drained(ctx, deadline)
	if record.Recovery == Outage {
		after(ctx, l.broker.lastConsumed, record.Ended, deadline)
	}
}

// after waits until last returns a time after moment. It returns false if that has
// not happened by the deadline.
func after(ctx context.Context, last func() time.Time, moment, deadline time.Time) bool {
	for !last().After(moment) {
		if time.Now().After(deadline) || !sleep(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return true
}

// drained waits until everything that is pending now is published. It returns
// false if that takes until the deadline, or if the database is unreachable.
func (l *lab) drained(ctx context.Context, deadline time.Time) bool {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := l.look(ctx, func(ctx context.Context, conn conn) error {
		var newest int64
		if err := conn.QueryRow(ctx, "SELECT coalesce(max(seq), 0) FROM video_catalog.outbox_pending").Scan(&newest); err != nil {
			return err
		}
		for pending := true; pending; {
			err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM video_catalog.outbox_pending WHERE seq <= $1)", newest).Scan(&pending)
			if err != nil {
				return err
			}
			if pending && !sleep(ctx, 50*time.Millisecond) {
				return ctx.Err()
			}
		}
		if l.cfg.Relay == RelayWAL {
			return confirmed(ctx, conn)
		}
		return nil
	})
	return err == nil
}
