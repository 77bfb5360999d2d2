package main

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

// The ledger counts events that arrive twice or after a newer event of their aggregate, and no others.
func TestLedgerCountsDisorderAndDuplicates(t *testing.T) {
	w := inTurns(6, 2, 100) // versions 1 to 3 of two aggregates, in turn
	for _, test := range []struct {
		name                 string
		order                []int
		disorder, duplicates int64
		done                 bool
	}{
		{"in order", []int{0, 1, 2, 3, 4, 5}, 0, 0, true},
		{"aggregate by aggregate", []int{1, 3, 5, 0, 2, 4}, 0, 0, true},
		{"one too late", []int{0, 1, 4, 2, 3, 5}, 1, 0, true},
		{"one twice", []int{0, 1, 2, 0, 3, 4, 5}, 0, 1, true},
		{"one missing", []int{0, 1, 2, 3, 4, 4}, 0, 1, false},
	} {
		l := newLedger(w)
		for _, i := range test.order {
			l.see(w.payload(i))
		}
		done := false
		select {
		case <-l.done:
			done = true
		default:
		}
		if got := l.disorder.Load(); got != test.disorder {
			t.Errorf("%s: out of order: %d, want %d", test.name, got, test.disorder)
		}
		if got := l.duplicates.Load(); got != test.duplicates {
			t.Errorf("%s: duplicates: %d, want %d", test.name, got, test.duplicates)
		}
		if done != test.done {
			t.Errorf("%s: done: %t, want %t", test.name, done, test.done)
		}
	}
}

// The versions of each aggregate are 1, 2, 3 and so on, for both distributions.
func TestWorkloadsCountVersions(t *testing.T) {
	for name, w := range map[string]workload{"in turns": inTurns(1000, 7, 50), "uniform": uniform(1000, 7, 50)} {
		next, total := make(map[int64]int64), 0
		for i := range w.len() {
			next[w.aggregates[i]]++
			if got, want := w.versions[i], next[w.aggregates[i]]; got != want {
				t.Fatalf("%s: event %d of aggregate %d has version %d, want %d", name, i, w.aggregates[i], got, want)
			}
		}
		for _, n := range w.perAggregate {
			total += n
		}
		if total != w.len() {
			t.Errorf("%s: the aggregates have %d events together, want %d", name, total, w.len())
		}
	}
}

// The data of a message is found next to other fields.
func TestDataOfFindsTheData(t *testing.T) {
	want := binary.BigEndian.AppendUint64(nil, 42)
	encoded, err := proto.Marshal(&pubsubpb.PubsubMessage{Data: want, OrderingKey: "k", MessageId: "1", Attributes: map[string]string{"a": "b"}})
	must(t, err)
	if got := dataOf(encoded); string(got) != string(want) {
		t.Errorf("dataOf() = %x, want %x", got, want)
	}
	if got := dataOf([]byte{0xff}); got != nil {
		t.Errorf("dataOf(garbage) = %x, want none", got)
	}
}

// Every part finishes, sends and settles every event, and writes its results; otherwise a turn fails. Events of ours
// are in order and without duplicates, also from four instances and to Pub/Sub.
func TestTinyProfileMeasuresEverything(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.txt")
	must(t, run(t.Context(), []string{"-profile", "tiny", "-out", file}, io.Discard))
	b, err := os.ReadFile(file)
	must(t, err)
	lines := strings.Split(string(b), "\n")
	for _, want := range []string{"Drain/", "Latency/", "Chain/", "Write/", "Project/", "Consume/"} {
		found := false
		for _, line := range lines {
			found = found || strings.HasPrefix(line, "Benchmark"+want)
		}
		if !found {
			t.Errorf("there is no line of %s", want)
		}
	}
	if got, want := strings.Count(string(b), "BenchmarkLatency/peer=ours/"), 6; got != want { // three sinks, with one instance and with four
		t.Errorf("our publisher was measured at %d steady loads, want %d", got, want)
	}
	drains := 0
	for _, line := range lines {
		if !strings.HasPrefix(line, "BenchmarkDrain/peer=ours/") {
			continue
		}
		drains++
		if !strings.Contains(line, " 0 out-of-order") || !strings.Contains(line, " 0 duplicates") {
			t.Errorf("out of order or twice: %s", line)
		}
	}
	if drains != 8 && drains != 9 { // three sinks with one instance and with four, a larger payload, kfake, and a real Kafka if there is one
		t.Errorf("our publisher drained %d backlogs, want 8 or 9", drains)
	}
}
