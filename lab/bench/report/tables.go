package main

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

// table writes a Markdown table. All columns but the first are numbers.
func table(b *strings.Builder, header []string, rows [][]string) {
	fmt.Fprintf(b, "| %s |\n| --- |%s\n", strings.Join(header, " | "), strings.Repeat(" ---: |", len(header)-1))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteByte('\n')
}

func heading(b *strings.Builder, text string) { fmt.Fprintf(b, "### %s\n\n", text) }

// figure returns the median of a benchmark as text.
func (r *results) figure(name, unit string) string {
	if v, ok := r.median(name, unit); ok {
		return short(v)
	}
	return "–"
}

// times returns a ratio as text.
func (r *results) times(name, to, unit string) string {
	if v, ok := r.ratio(name, to, unit); ok {
		return short(v)
	}
	return "–"
}

var sinkTexts = []struct{ kind, text string }{
	{"none", "a sink that responds at once"},
	{"10ms", "a sink that responds to each message after 10 ms"},
	{"pubsub", "pubsublocal, with ordering keys"},
}

func markdown(r *results) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "Measured on %s, of commit %s, with %s cores, PostgreSQL %s, %s, profile %s: medians of the turns; beside the aims the least and the most of them, or, where there are many, the 95 %% confidence interval of the median; ratios turn by turn.\n\n",
		r.config["date"], cmp.Or(r.config["commit"], "unknown"), r.config["cores"], r.config["postgres"], strings.Replace(r.config["go"], "go", "Go ", 1), r.config["profile"])

	heading(b, "What was aimed at")
	var rows [][]string
	for _, t := range targets(r) {
		rows = append(rows, t.row())
	}
	table(b, []string{"what", "measured", "turns", "aim", "verdict"}, rows)

	heading(b, "Emptying a backlog")
	drains(b, r)

	heading(b, "From the commit to the broker's client (with pubsublocal: to the broker), at a steady load")
	latency(b, r)

	heading(b, "The write path, the projector")
	paths(b, r)
	return b.String()
}

func drains(b *strings.Builder, r *results) {
	one := func(kind string, instances, payload int, text string) {
		prefix := fmt.Sprintf("/sink=%s/instances=%d/payload=%d", kind, instances, payload)
		naive := "Drain/peer=naive" + prefix
		var rows [][]string
		names, peers := r.with("Drain/", "peer")
		for i, name := range names {
			if !strings.HasSuffix(name, prefix) {
				continue
			}
			rows = append(rows, []string{
				peers[i], r.figure(name, "events/s"), r.times(name, naive, "events/s"),
				r.figure(name, "own-cpu-s/Mevent"), r.figure(name, "postgres-cpu-s/Mevent"), r.figure(name, "WAL-B/event"), r.figure(name, "size-B/event"),
				short(r.max(name, "out-of-order")), short(r.max(name, "duplicates")),
			})
		}
		if len(rows) == 0 {
			return
		}
		fmt.Fprintf(b, "Into %s, %d B, instances: %d\n\n", text, payload, instances)
		table(b, []string{
			"publisher", "events/s", "÷ naive", "own CPU s/M events", "of PostgreSQL", "WAL B/event", "tables after, B/event", "out of order", "duplicates",
		}, rows)
	}
	for _, sink := range sinkTexts {
		one(sink.kind, 1, 500, sink.text)
		one(sink.kind, 4, 500, sink.text)
	}
	one("pubsub-defaults", 1, 500, "pubsublocal, with a client that waits 10 ms to fill a request, as it comes")
	one("none", 1, 1000, sinkTexts[0].text)
	one("kfake", 1, 500, "kfake, Kafka in this process")
	one("kafka", 1, 500, "a real Apache Kafka beside it")
}

func latency(b *strings.Builder, r *results) {
	var first, others [][]string
	for _, peer := range peersOf(r) {
		name := latencyName(peer, "none", 1, 1000)
		first = append(first, []string{
			peer, r.figure(name, "p50-commit-to-sent-ms"), r.figure(name, "p99-commit-to-sent-ms"), r.figure(name, "cpu-s/Mevent"), r.figure(name, "WAL-B/event"),
			short(r.max(name, "out-of-order")), short(r.max(name, "duplicates")),
		})
		row := []string{peer}
		for _, name := range []string{
			latencyName(peer, "none", 4, 1000), latencyName(peer, "10ms", 1, 50), latencyName(peer, "10ms", 4, 50),
			latencyName(peer, "pubsub", 1, 50), latencyName(peer, "pubsub", 4, 50),
		} {
			row = append(row, r.figure(name, "p50-commit-to-sent-ms")+" / "+r.figure(name, "p99-commit-to-sent-ms"))
		}
		others = append(others, row)
	}
	fmt.Fprintf(b, "1,000 events a second, into a sink that responds at once, one instance\n\n")
	table(b, []string{"publisher", "p50 ms", "p99 ms", "CPU s/M events, writers too", "WAL B/event, of the writers too", "out of order", "duplicates"}, first)
	fmt.Fprintf(b, "p50 / p99 in ms elsewhere, of one turn each: at 50 events a second the quick profile has 100 of them, of which p99 is the second slowest\n\n")
	table(b, []string{
		"publisher", "no-op, 4 instances, 1,000/s", "10 ms, 1 instance, 50/s", "10 ms, 4 instances, 50/s", "pubsublocal, 1 instance, 50/s", "pubsublocal, 4 instances, 50/s",
	}, others)
	const chain = "Chain/rate=1000"
	fmt.Fprintf(b, "The whole service at 1,000 events a second, into pubsublocal and out of it: commit → sent p50 %s ms, p99 %s ms; commit → in the broker p50 %s ms, p99 %s ms; commit → visible in the catalog p50 %s ms, p99 %s ms; CPU %s s/M events, of clients, broker and PostgreSQL too.\n\n",
		r.figure(chain, "p50-commit-to-sent-ms"), r.figure(chain, "p99-commit-to-sent-ms"),
		r.figure(chain, "p50-commit-to-broker-ms"), r.figure(chain, "p99-commit-to-broker-ms"),
		r.figure(chain, "p50-commit-to-visible-ms"), r.figure(chain, "p99-commit-to-visible-ms"), r.figure(chain, "cpu-s/Mevent"))
}

func paths(b *strings.Builder, r *results) {
	part := func(prefix, key, first string, header []string, units ...string) {
		var rows [][]string
		names, values := r.with(prefix, key)
		if len(names) == 0 {
			return
		}
		for i, name := range names {
			row := []string{values[i], r.figure(name, units[0]), r.times(names[0], name, units[0])}
			for _, unit := range units[1:] {
				row = append(row, r.figure(name, unit))
			}
			rows = append(rows, row)
		}
		table(b, append([]string{first}, header...), rows)
	}
	part("Write/", "kind", "write transaction, 8 connections", []string{"tx/s", "ours ÷ it", "client's CPU µs/tx", "PostgreSQL's CPU µs/tx", "WAL B/tx"},
		"tx/s", "own-cpu-us/tx", "postgres-cpu-us/tx", "WAL-B/tx")
	part("Project/", "batch", "projector, events per transaction", []string{"events/s", "100 ÷ it", "CPU s/M events", "WAL B/event"}, "events/s", "cpu-s/Mevent", "WAL-B/event")
	part("ConsumeFrom/", "broker", "projector and a Kafka, 100 events per transaction at most", []string{"events/s", "÷ the first", "CPU s/M events", "WAL B/event"}, "events/s", "cpu-s/Mevent", "WAL-B/event")
	part("Consume/", "batch", "projector and pubsublocal, emptying a subscription, events per transaction at most", []string{"events/s", "100 ÷ it", "CPU s/M events", "WAL B/event"}, "events/s", "cpu-s/Mevent", "WAL-B/event")
}

func peersOf(r *results) []string {
	var peers []string
	names, all := r.with("Drain/", "peer")
	for i, name := range names {
		if name == drainName(all[i], "none", 1) {
			peers = append(peers, all[i])
		}
	}
	return peers
}

// short writes a number with at most three significant digits, or as an integer from 1000 to 9994.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 999_500:
		return trim(v/1e6, 3) + "M"
	case v >= 9995:
		return trim(v/1e3, 3) + "k"
	}
	return trim(v, 3)
}

func trim(v float64, digits int) string {
	decimals := max(0, digits-1-int(math.Floor(math.Log10(v))))
	text := fmt.Sprintf("%.*f", decimals, v)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
