package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/googleapis/gax-go/v2"
)

// cell is a measured combination. size is the payload in bytes.
type cell struct {
	peer, sink string
	instances  int
	size       int
}

func (c cell) name() string {
	return fmt.Sprintf("Drain/peer=%s/sink=%s/instances=%d/payload=%d", c.peer, c.sink, c.instances, c.size)
}

// drains measures how all peers empty a backlog of the same events. They take turns, so that other load on the machine
// affects all of them.
func drains(ctx context.Context, m *machine, s *sinks, peers map[string]peer, p profile, r *results) error {
	var cells []cell
	for _, kind := range []string{sinkNone, sinkSlow, sinkPubSub} {
		for _, instances := range []int{1, 4} {
			for _, name := range peerNames {
				cells = append(cells, cell{name, kind, instances, 500})
			}
		}
	}
	cells = append(cells, cell{"naive", sinkDefaults, 1, 500})
	for _, name := range peerNames {
		cells = append(cells, cell{name, sinkNone, 1, 1000})
	}
	for kind := range s.kafkas {
		cells = append(cells, cell{"ours", kind, 1, 500})
	}
	events := map[cell]int{}
	for _, c := range cells {
		n, err := turnEvents(ctx, m, s, peers[c.peer], c, p)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		events[c] = n
	}
	order := slices.Clone(cells)
	for range p.rounds {
		for _, c := range order {
			t, err := drain(ctx, m, s, peers[c.peer], c, uniform(events[c], p.aggregates, c.size))
			if err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			if err := r.write(c.name(), t.events, t.values()...); err != nil {
				return err
			}
		}
		// The order is random in all rounds but the first, because the disk writes of one turn are done during the
		// next.
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	return nil
}

// turnEvents returns how many events fill a turn. It tries turns of growing length, until the start of the instances
// is only a small part. They also warm up the machine.
func turnEvents(ctx context.Context, m *machine, s *sinks, p peer, c cell, prof profile) (int, error) {
	for n := min(pilotEvents(c), prof.maxEvents); ; {
		pilot, err := drain(ctx, m, s, p, c, uniform(n, prof.aggregates, c.size))
		if err != nil {
			return 0, err
		}
		next := min(max(int(pilot.rate()*prof.turn.Seconds()), leastEvents(c)), prof.maxEvents)
		if pilot.elapsed > prof.turn*8/10 || next <= n {
			return next, nil
		}
		n = next
	}
}

// leastEvents returns how many events a turn needs so that each instance can claim some.
func leastEvents(c cell) int {
	if c.instances > 1 && (c.peer == "naive" || c.peer == "naive-async" || c.peer == "batch") {
		return 2 * c.instances * claimSize
	}
	return 50
}

func pilotEvents(c cell) int {
	switch {
	case c.peer == "ours":
		return 100_000 // fewer are drained before the connections have prepared their plans
	case c.sink == sinkNone:
		return 2000
	}
	return 100
}

// turn is the measurement of one drain.
type turn struct {
	events               int
	elapsed              time.Duration
	ours, postgres       time.Duration
	wal, size            int64
	disorder, duplicates int64
}

func (t turn) rate() float64 { return float64(t.events) / t.elapsed.Seconds() }

func (t turn) values() []value {
	n := float64(t.events)
	return []value{
		{"events/s", t.rate()},
		{"own-cpu-s/Mevent", t.ours.Seconds() / n * 1e6},
		{"postgres-cpu-s/Mevent", t.postgres.Seconds() / n * 1e6},
		{"cpu-s/Mevent", (t.ours + t.postgres).Seconds() / n * 1e6},
		{"WAL-B/event", float64(t.wal) / n},
		{"size-B/event", float64(t.size) / n},
		{"out-of-order", float64(t.disorder)},
		{"duplicates", float64(t.duplicates)},
	}
}

// drain commits a backlog, and measures from the start of the instances until every event is settled.
func drain(ctx context.Context, m *machine, s *sinks, p peer, c cell, w workload) (turn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := m.backlogOf(ctx, p, w); err != nil {
		return turn{}, err
	}
	return m.empty(ctx, s, p, c.sink, c.instances, w)
}

// empty measures how instances empty the present backlog.
func (m *machine) empty(ctx context.Context, s *sinks, p peer, kind string, instances int, w workload) (t turn, err error) {
	l := newLedger(w)
	k, err := s.begin(ctx, kind, l)
	if err != nil {
		return turn{}, err
	}
	used, err := m.measure(ctx, func() error {
		begun := time.Now()
		at, err := start(ctx, p, k, instances)
		if err != nil {
			return err
		}
		err = m.settled(ctx, p, l)
		t.elapsed = time.Since(begun)
		return errors.Join(err, at.stop())
	})
	if err != nil {
		return turn{}, fmt.Errorf("%d of %d events: %w", l.distinct.Load(), w.len(), err)
	}
	for _, table := range p.tables() {
		var size int64
		// The size of a partitioned table is the sum of its partitions.
		if err := p.db().QueryRow(ctx, `
			SELECT coalesce((SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree($1::text::regclass) WHERE isleaf),
				pg_total_relation_size($1::text::regclass))::bigint`, table).Scan(&size); err != nil {
			return turn{}, fmt.Errorf("size of %s: %w", table, err)
		}
		t.size += size
	}
	t.events, t.ours, t.postgres, t.wal = w.len(), used.ours, used.postgres, used.wal
	t.disorder, t.duplicates = l.disorder.Load(), l.duplicates.Load()
	return t, nil
}

// settled waits until every event was sent and settled.
func (m *machine) settled(ctx context.Context, p peer, l *ledger) error {
	select {
	case <-l.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		left, err := p.left(ctx)
		if err != nil || left == 0 {
			return err
		}
		if err := gax.Sleep(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("%d events are sent and not settled: %w", left, err)
		}
	}
}
