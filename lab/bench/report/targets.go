package main

import (
	"fmt"
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// target is a target for a figure of this service.
type target struct {
	what   string
	turns  []float64
	limit  float64
	atMost bool // limit is an upper bound
	unit   string
}

func (t target) row() []string {
	middle, known := median(t.turns)
	sign, met := "≥", middle >= t.limit
	if t.atMost {
		sign, met = "≤", middle <= t.limit
	}
	verdict, measured, between := "**not met**", short(middle)+t.unit, "–"
	if known {
		between = spread(t.turns)
	}
	switch {
	case !known:
		verdict, measured = "not measured", "–"
	case t.undecided():
		verdict = "undecided"
	case met:
		verdict = "met"
	}
	return []string{t.what, measured, between, sign + " " + short(t.limit) + t.unit, verdict}
}

// undecided reports whether the confidence interval of the median contains the limit.
func (t target) undecided() bool {
	s := interval(t.turns)
	return !math.IsInf(s.Lo, 0) && !math.IsInf(s.Hi, 0) && s.Lo < t.limit && t.limit < s.Hi
}

// interval returns the median of turns, and its 95 % confidence interval if there are at least six.
func interval(turns []float64) benchmath.Summary {
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(turns), &benchmath.DefaultThresholds), 0.95)
}

// spread returns the 95 % confidence interval of the median, or the minimum and maximum if there
// are fewer than six turns.
func spread(turns []float64) string {
	s := interval(turns)
	if math.IsInf(s.Lo, 0) || math.IsInf(s.Hi, 0) {
		return short(slices.Min(turns)) + "–" + short(slices.Max(turns))
	}
	return short(s.Lo) + "–" + short(s.Hi) + ", 95 %"
}

func drainName(peer, sink string, instances int) string {
	return fmt.Sprintf("Drain/peer=%s/sink=%s/instances=%d/payload=500", peer, sink, instances)
}

func latencyName(peer, sink string, instances, rate int) string {
	return fmt.Sprintf("Latency/peer=%s/sink=%s/instances=%d/rate=%d", peer, sink, instances, rate)
}

// The libraries that keep the order of an aggregate: with one instance, with several instances, and
// with one instance and default settings.
var (
	ordered       = []string{"watermill", "watermill-1000", "oagudo", "oagudo-async", "oagudo-1000"}
	orderedByMany = []string{"watermill", "watermill-1000"}
	byDefault     = []string{"watermill", "oagudo"}
)

func targets(r *results) []target {
	ratio := func(what, name, to, unit string, limit float64) target {
		return target{what: what, turns: r.ratios(name, to, unit), limit: limit, unit: " ×"}
	}
	figure := func(what, name, unit string, limit float64) target {
		return target{what: what, turns: r.figures[name][unit], limit: limit, atMost: true, unit: " ms"}
	}
	option := func(what, name, unit string, limit float64, atMost bool) target { // its benchmark divides
		return target{what: what, turns: r.figures[name][unit], limit: limit, atMost: atMost, unit: " ×"}
	}
	best := func(what string, instances int, peers []string) target {
		t := target{what: what, limit: 5, unit: " ×"}
		for _, peer := range peers {
			turns := r.ratios(drainName("ours", "none", instances), drainName(peer, "none", instances), "events/s")
			least, some := median(t.turns)
			if v, known := median(turns); known && (!some || v < least) {
				t.turns, t.what = turns, what+": "+peer
			}
		}
		return t
	}
	all := []target{
		ratio("drain ÷ naive, no-op sink", drainName("ours", "none", 1), drainName("naive", "none", 1), "events/s", 40),
		ratio("drain ÷ naive that does not wait for the disk, no-op sink", drainName("ours", "none", 1), drainName("naive-async", "none", 1), "events/s", 40),
		best("drain ÷ the best library that orders, no-op sink, one instance, the libraries' default batches", 1, byDefault),
		ratio("the same, and oagudo does not wait for the disk either", drainName("ours", "none", 1), drainName("oagudo-async", "none", 1), "events/s", 5),
		best("drain ÷ the best of all that order, one instance, also with batches of 1000 or without waiting for the disk", 1, ordered),
		ratio("drain ÷ batch, the loop with one transaction for 200 events, no-op sink, one instance", drainName("ours", "none", 1), drainName("batch", "none", 1), "events/s", 5),
		best("drain ÷ the best library that orders with many instances, no-op sink, 4 instances", 4, orderedByMany),
		ratio("drain ÷ naive, sink of 10 ms", drainName("ours", "10ms", 1), drainName("naive", "10ms", 1), "events/s", 1000),
		ratio("drain ÷ naive, into pubsublocal, client as it comes", drainName("ours", "pubsub", 1), drainName("naive", "pubsub-defaults", 1), "events/s", 60),
		ratio("drain ÷ naive, into pubsublocal, naive's client sends at once", drainName("ours", "pubsub", 1), drainName("naive", "pubsub", 1), "events/s", 60),
		ratio("drain ÷ naive, 4 instances of each, no-op sink", drainName("ours", "none", 4), drainName("naive", "none", 4), "events/s", 40),
		ratio("drain ÷ naive, 4 instances of each, sink of 10 ms", drainName("ours", "10ms", 4), drainName("naive", "10ms", 4), "events/s", 1000),
		ratio("drain ÷ naive, 4 instances of each, into pubsublocal, naive's client sends at once", drainName("ours", "pubsub", 4), drainName("naive", "pubsub", 4), "events/s", 60),
		ratio("drain into kfake ÷ into pubsublocal", drainName("ours", "kfake", 1), drainName("ours", "pubsub", 1), "events/s", 0.5),
		ratio("write path ÷ without outbox", "Write/kind=ours", "Write/kind=without-outbox", "tx/s", 0.72),
		ratio("write path ÷ pgbench, all on the same CPUs", "Write/kind=ours", "Write/kind=pgbench", "tx/s", 0.9),
		figure("commit → sent at 1,000/s, no-op sink, p50", latencyName("ours", "none", 1, 1000), "p50-commit-to-sent-ms", 0.5),
		figure("commit → sent at 1,000/s, the whole service, p50", "Chain/rate=1000", "p50-commit-to-sent-ms", 0.5),
		figure("commit → in the broker at 1,000/s, the whole service into pubsublocal, p50", "Chain/rate=1000", "p50-commit-to-broker-ms", 0.5),
		figure("commit → visible in the catalog at 1,000/s, p50", "Chain/rate=1000", "p50-commit-to-visible-ms", 10),
		ratio("projector: batch of 100 ÷ one transaction per message, events at hand", "Project/batch=100", "Project/batch=1", "events/s", 7),
		ratio("the same out of a subscription of pubsublocal", "Consume/batch=100", "Consume/batch=1", "events/s", 7),
		ratio("the projector: from kfake ÷ from pubsublocal", "ConsumeFrom/broker=kfake", "Consume/batch=100", "events/s", 0.8),
		option("appends: mode wal ÷ lanes", "ModeWAL", "appends/s-ratio", 0.95, false),
		option("WAL per event with its settlement: mode wal ÷ lanes", "ModeWAL", "WAL-B/event-ratio", 0.55, true),
		option("append → sent at 1,000/s, p50: mode wal ÷ lanes", "ModeWAL", "ms-to-sent-ratio", 2, true),
		option("drain, no-op sink: mode wal ÷ lanes", "ModeWAL", "drained/s-ratio", 0.2, false),
		option("appends in mode lanes: with options/wal ÷ without it", "ModeWAL", "installed-ratio", 0.85, false),
		option("time of a write: with a tenant ÷ without", "Tenancy/write", "with/without", 1.05, true),
		option("time of a page of 20: with a tenant ÷ without", "Tenancy/page", "with/without", 1.5, true),
		option("HTTP sink of 10 ms, 1,000 keys ÷ a loop with one request at a time", "Sink", "×loop", 30, false),
		option("a drain by relay-http ÷ `server drain`", "Drain", "×drain", 0.95, false),
		option("memory of a drain by relay-http ÷ `server drain`", "Drain", "×memory", 1.1, true),
		option("1,000 creates ÷ a batch of 1,000", "Batch", "x", 5, false),
	}
	for _, sink := range sinkTexts {
		for _, instances := range []int{1, 4} {
			what := fmt.Sprintf("CPU per event: naive ÷ ours, %s, instances: %d", sink.text, instances)
			all = append(all, ratio(what, drainName("naive", sink.kind, instances), drainName("ours", sink.kind, instances), "cpu-s/Mevent", 20))
		}
	}
	return all
}
