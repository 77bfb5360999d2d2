package service

import (
	"maps"
	"testing"
	"time"

	"example.com/videocatalog/internal/pg/pgtest"
)

// Both sides are in one database, and its asynchronous standby takes over without the last transactions: what was
// projected and acknowledged only on the lost primary is missing from the catalog, and a repair brings it back.
func TestFailoverOfBothSides(t *testing.T) {
	c := newCluster(t)
	s := &stack{url: c.network.URL, pubsub: newBroker(t)}
	p := s.start(t, "ROLES=api,publisher", "TELEMETRY_ADDR=127.0.0.1:0")
	projector := s.start(t, "ROLES=projector")

	kept := p.create(t, "kept")
	s.settled(t, c.primaryURL)
	watcher := p.watch(t, "", nil)
	eventually(t, time.Minute, "the watcher has the first entry", func() bool { return len(watcher.copy()) == 1 })
	had, token := watcher.copy(), watcher.position()

	// Three videos are published and replicated, and projected only after the standby is cut off.
	projector.stop(t)
	for range 3 {
		p.create(t, "projected on the lost primary")
	}
	eventually(t, time.Minute, "all events are published", func() bool {
		return ask[int](t, c.primaryURL, "SELECT (SELECT count(*)::int FROM video_catalog.outbox_pending) + (SELECT count(*)::int FROM video_catalog.outbox_deferred)")[0] == 0
	})
	c.cut(t)
	s.start(t, "ROLES=projector")
	p.create(t, "lost")
	p.rename(t, kept, "lost")
	s.settled(t, c.primaryURL)
	if got := len(p.listed(t)); got != 5 {
		t.Fatalf("catalog of the lost primary has %d entries, want 5", got)
	}

	c.failOver(t)
	p.eventuallyReady(t)
	if got := len(p.listed(t)); got != 1 {
		t.Fatalf("catalog after the failover has %d entries, want the one that was replicated: the test tests nothing", got)
	}
	p.checkReplaced(t, "commands", "queries")
	late := p.watch(t, token, had)
	s.repair(t, p, s.url, "missing 3, behind 0, ahead 0, different 0, extra 0")
	if got := len(p.published(t)); got != 4 {
		t.Errorf("owner has %d published videos after the failover, want 4", got)
	}
	p.checkRepaired(t, watcher, late)
	if watcher.restarts() == 0 || late.restarts() == 0 {
		t.Errorf("told to begin again: the watch of before %d times, the one that resumed %d times, want both", watcher.restarts(), late.restarts())
	}

	p.rename(t, kept, "after the failover")
	s.settled(t, c.standbyURL)
	p.checkRepaired(t, watcher, late)
}

// The owner has a database of its own, and that one fails over: the catalog has changes that the owner has lost. The
// owner's next events have versions that the catalog has already.
func TestFailoverOfTheOwner(t *testing.T) {
	c := newCluster(t)
	s := &stack{url: c.network.URL, pubsub: newBroker(t)}
	catalog := pgtest.URL(t)
	p := s.start(t, "READ_DATABASE_URL="+catalog, "TELEMETRY_ADDR=127.0.0.1:0")

	ahead, again, deleted, untouched := p.create(t, "ahead"), p.create(t, "again"), p.create(t, "deleted"), p.create(t, "untouched")
	s.settled(t, c.primaryURL)
	c.cut(t)
	p.create(t, "ghost")
	p.rename(t, ahead, "lost")
	p.rename(t, again, "lost")
	p.delete(t, deleted)
	s.settled(t, c.primaryURL)
	watcher := p.watch(t, "", nil)

	c.failOver(t)
	p.eventuallyReady(t)
	p.rename(t, again, "after the failover") // version 3 for the second time
	p.rename(t, untouched, "after the failover")
	s.settled(t, c.standbyURL)
	p.checkMetric(t, "consumer_events_total", `outcome="conflict"`, 1)
	p.checkReplaced(t, "commands")
	s.repair(t, p, catalog, "missing 0, behind 0, ahead 2, different 0, extra 1")
	p.checkRepaired(t, watcher)
	if got := s.eventsOf(again, 3); len(got) != 2 {
		t.Errorf("events of version 3 = %v, want two", got)
	}

	for _, name := range []string{ahead, again, deleted} {
		p.rename(t, name, "after the repair")
	}
	s.settled(t, c.standbyURL)
	p.checkRepaired(t, watcher)
}

// The catalog has a database of its own, and that one fails over: it lacks what was acknowledged on the lost primary.
func TestFailoverOfTheCatalog(t *testing.T) {
	c := newCluster(t)
	owner := pgtest.URL(t)
	s := &stack{url: owner, pubsub: newBroker(t)}
	p := s.start(t, "READ_DATABASE_URL="+c.network.URL, "TELEMETRY_ADDR=127.0.0.1:0")

	behind, deleted := p.create(t, "behind"), p.create(t, "deleted")
	s.settled(t, owner)
	watcher := p.watch(t, "", nil)
	eventually(t, time.Minute, "the watcher has both entries", func() bool { return len(watcher.copy()) == 2 })
	c.cut(t)
	p.create(t, "missing")
	p.rename(t, behind, "changed")
	p.delete(t, deleted)
	s.settled(t, owner)
	eventually(t, time.Minute, "the watcher has what will be lost", func() bool { return maps.Equal(watcher.copy(), p.published(t)) })

	c.failOver(t)
	p.eventuallyReady(t)
	p.checkReplaced(t, "queries")
	s.repair(t, p, c.network.URL, "missing 1, behind 2, ahead 0, different 0, extra 0")
	p.checkRepaired(t, watcher)
	if watcher.restarts() == 0 {
		t.Error("the watch was not told to begin again")
	}
}
