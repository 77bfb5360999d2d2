package pg_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// world is an outbox with writers, publishers, operators and a broker. They take one step at a
// time. The fields have the data that the checks of the promises need.
type world struct {
	*letters
	writers   map[int]pgx.Tx           // open transactions, by writer
	appended  map[int]map[string]int64 // the newest version of each letter in them
	committed map[string]int64         // the newest version of each letter
	claims    map[int]outbox.Claim     // in the hands of publishers
	token     map[int16]int64          // of the last claim of each lane
	broker    []string                 // the events it has, in the order in which they came
	mayRepeat map[string]int           // how many more times an event may come
	skipped   map[string]bool
}

// Writers, publishers and operators act in any order, and publishers may crash or sleep longer
// than their lease. Then every committed event is published, the first deliveries of an aggregate
// come in the order of its versions, no event comes twice unless a publisher crashed or
// overslept, and a settlement counts only under the last claim of its lane. A failure prints the
// shortest sequence of steps, and the flag that repeats it. For a longer run add
// -rapid.checks=10000.
func TestOutboxKeepsItsPromises(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	rapid.Check(t, func(t *rapid.T) {
		execute(l.t, l.pool, "DELETE FROM video_catalog.outbox_pending")
		execute(l.t, l.pool, "DELETE FROM video_catalog.outbox_deferred")
		execute(l.t, l.pool, "DELETE FROM video_catalog.outbox_blocked")
		l.endLeases()
		w := &world{
			letters: l, writers: map[int]pgx.Tx{}, appended: map[int]map[string]int64{}, committed: map[string]int64{}, claims: map[int]outbox.Claim{},
			token: map[int16]int64{}, mayRepeat: map[string]int{}, skipped: map[string]bool{},
		}
		defer w.rollbackAll()
		t.Repeat(map[string]func(*rapid.T){
			"append": w.appendSome, "end": w.end, "claim": w.claimSome, "settle": w.settleOne, "crash": w.crash,
			"lease ends": func(*rapid.T) { w.endLeases() }, "due": w.becomeDue, "requeue": w.requeue, "skip": w.skip, "floor": w.raiseFloors,
		})
		w.finish(t)
		w.check(t)
	})
}

// pick draws one of some values. Without a value, it skips the step.
func pick[V any](t *rapid.T, from []V) V {
	if len(from) == 0 {
		t.Skip("there is none")
	}
	return rapid.SampledFrom(from).Draw(t, "which")
}

// appendSome appends events in the transaction of a writer, which holds the locks of their
// aggregates, and may commit it.
func (w *world) appendSome(t *rapid.T) {
	writer := rapid.IntRange(0, 1).Draw(t, "writer")
	if w.writers[writer] == nil {
		w.writers[writer], w.appended[writer] = w.begin(), map[string]int64{}
	}
	mine := w.appended[writer]
	for range rapid.IntRange(1, 3).Draw(t, "events") {
		letter := rapid.SampledFrom([]string{"a", "b", "c", "D"}).Draw(t, "letter")
		if _, locked := w.appended[1-writer][letter]; locked {
			continue
		}
		mine[letter] = max(mine[letter], w.committed[letter]) + 1
		w.append(w.writers[writer], fmt.Sprint(letter, mine[letter]))
	}
	if rapid.Bool().Draw(t, "commit") {
		w.endOf(t, writer, true)
	}
}

func (w *world) end(t *rapid.T) {
	w.endOf(t, pick(t, slices.Sorted(maps.Keys(w.writers))), rapid.Bool().Draw(t, "commit"))
}

func (w *world) endOf(t *rapid.T, writer int, commit bool) {
	finish := w.writers[writer].Rollback
	if commit {
		finish = w.writers[writer].Commit
		maps.Copy(w.committed, w.appended[writer])
	}
	if err := finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	delete(w.writers, writer)
	delete(w.appended, writer)
}

func (w *world) rollbackAll() {
	for _, tx := range w.writers {
		rollback(tx)
	}
}

func (w *world) claimSome(t *rapid.T) {
	publisher := rapid.IntRange(0, 2).Draw(t, "publisher")
	if _, busy := w.claims[publisher]; busy {
		t.Skip("it has a claim")
	}
	lanes := rapid.SampledFrom([]int{1, outbox.Lanes}).Draw(t, "lanes")
	if claim := w.claimLanes(lanes, rapid.IntRange(1, 6).Draw(t, "batch"), hour); claim.Token != 0 {
		w.claims[publisher] = claim
		for _, span := range claim.Spans {
			w.token[span.Lane] = claim.Token
		}
	}
}

// settleOne publishes a claim, perhaps late, and settles it. The broker refuses some events.
func (w *world) settleOne(t *rapid.T) {
	publisher := pick(t, slices.Sorted(maps.Keys(w.claims)))
	claim := w.claims[publisher]
	delete(w.claims, publisher)
	s, sent := w.publish(claim, func() bool { return rapid.IntRange(0, 3).Draw(t, "refused if 0") == 0 })
	held, err := w.SettleClaim(t.Context(), s)
	lost := func(lane int16) bool { return w.token[lane] != claim.Token }
	if want := !slices.ContainsFunc(claim.Spans, func(s outbox.Span) bool { return lost(s.Lane) }); held != want || err != nil {
		t.Fatalf("SettleClaim() = %t, %v, want %t, nil", held, err, want)
	}
	// In a lane that was lost, the settlement did not count.
	w.allow(slices.DeleteFunc(sent, func(name string) bool { return !lost(outbox.Lane(w.letter(name))) }))
	for _, span := range claim.Spans {
		if !lost(span.Lane) {
			w.token[span.Lane] = 0
		}
	}
}

// crash has a publisher die after it has published, and before it settles.
func (w *world) crash(t *rapid.T) {
	publisher := pick(t, slices.Sorted(maps.Keys(w.claims)))
	_, sent := w.publish(w.claims[publisher], func() bool { return false })
	delete(w.claims, publisher)
	w.allow(sent)
}

// publish sends the events of a claim to the broker.
func (w *world) publish(claim outbox.Claim, refuse func() bool) (s outbox.Settlement, sent []string) {
	s = pgtest.Settlement(claim, func(e outbox.Claimed) bool {
		if refuse() {
			return true
		}
		sent = append(sent, nameOf(e))
		return false
	})
	w.broker = append(w.broker, sent...)
	return s, sent
}

// allow lets events come again, because a settlement did not count.
func (w *world) allow(sent []string) {
	for _, name := range sent {
		w.mayRepeat[name]++
	}
}

// blocked returns a blocked aggregate.
func (w *world) blocked(t *rapid.T) pg.Blocked {
	blocked, _, err := w.ListBlocked(t.Context(), pg.Filter{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	return pick(t, blocked)
}

func (w *world) becomeDue(t *rapid.T) { w.due(w.blocked(t).ID) }

func (w *world) raiseFloors(t *rapid.T) {
	if err := w.RaiseFloors(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (w *world) requeue(t *rapid.T) {
	if _, err := w.RetryBlocked(t.Context(), []pg.Blocked{w.blocked(t)}, operator); err != nil {
		t.Fatal(err)
	}
}

func (w *world) skip(t *rapid.T) {
	b := w.blocked(t)
	if b.EventID == uuid.Nil {
		t.Skip("it has no event")
	}
	if _, err := w.SkipBlocked(t.Context(), []pg.Blocked{b}, operator); err != nil {
		t.Fatal(err)
	}
	w.skipped[fmt.Sprint(b.ID[:1], b.Version)] = true
}

// finish ends all transactions and leases, and has one publisher empty the outbox.
func (w *world) finish(t *rapid.T) {
	for _, writer := range slices.Sorted(maps.Keys(w.writers)) {
		w.endOf(t, writer, true)
	}
	w.endLeases()
	execute(w.t, w.pool, "UPDATE video_catalog.outbox_blocked SET parked_at = NULL, attempts = 0, next_retry_at = now()")
	for range 1000 {
		claim := w.claim(5, hour)
		if claim.Token == 0 {
			break
		}
		s, _ := w.publish(claim, func() bool { return false })
		w.record(s)
	}
	if n := w.left(); n > 0 {
		t.Fatalf("%d events are left", n)
	}
}

// check compares what the broker has with what was committed.
func (w *world) check(t *rapid.T) {
	times, newest := map[string]int{}, map[string]int64{}
	for _, name := range w.broker {
		letter := name[:1]
		if times[name]++; times[name] > 1 || w.skipped[name] {
			continue
		}
		next := newest[letter] + 1
		for w.skipped[fmt.Sprint(letter, next)] {
			next++
		}
		if name != fmt.Sprint(letter, next) {
			t.Fatalf("%s came before %s%d:\n%q", name, letter, next, w.broker)
		}
		newest[letter] = next
	}
	for letter, last := range w.committed {
		for version := int64(1); version <= last; version++ {
			name := fmt.Sprint(letter, version)
			if times[name] == 0 && !w.skipped[name] {
				t.Errorf("%s was never published", name)
			}
			if times[name] > 1+w.mayRepeat[name] {
				t.Errorf("%s was published %d times, want at most %d", name, times[name], 1+w.mayRepeat[name])
			}
		}
	}
}

// rollback ends a transaction that may have ended.
func rollback(tx pgx.Tx) { _ = tx.Rollback(context.Background()) }
