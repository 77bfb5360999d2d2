package wal

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

// Mode wal begins and ends under load, with refusals and two processes, and with no more rights than the README says. A switch is
// killed at any step, and repeated, beside another one. Nothing is lost, whether they go on or back.
func TestKilledSwitchOfModeWAL(t *testing.T) {
	t.Parallel()
	s := newService(t)
	pgtest.Execute(t, s.pool, "CREATE ROLE "+s.slot+" LOGIN REPLICATION IN ROLE video_catalog_rw")
	s.url = strings.Replace(s.url, "postgres@", s.slot+"@", 1)
	s.refuse = once(100)
	defer s.relayed()()
	defer s.relayed()()
	writers := s.write(40, 20*time.Millisecond)
	for range 12 {
		for _, mode := range []string{wal, lanes} {
			for range rand.IntN(3) {
				killed := s.child("switch", s.slot, "relay", mode)
				time.Sleep(rand.N(600 * time.Millisecond))
				pgtest.Must(t, killed.Kill())
				_, _ = killed.Wait()
			}
			other := s.start([]string{wal, lanes}[rand.IntN(2)])
			t.Log(<-s.start(mode), <-other) // one of them may have to wait too long
			s.must(mode)
		}
	}
	writers()
	s.complete()
	s.eventually(0, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
}

// A killed switch leaves a statement that makes the slot, and waits for an open transaction. A repeated switch waits for this statement. If the
// statement fails, then the switch fails, too: no mode begins without a slot.
func TestRepeatedSwitchOfModeWAL(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, isMade := range []bool{false, true} {
		s.append(fmt.Sprint(isMade), 1)
		commit := s.openAppend("")
		killed := s.child("switch", s.slot, "relay", wal)
		s.eventually(1, "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()")
		pgtest.Must(t, killed.Kill())
		result := s.start(wal)
		s.eventually(1, "SELECT least(1, count(*)) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '-- name: FindHolder%'") // it waits
		if !isMade {
			pgtest.Execute(t, s.pool, "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = $1", s.slot)
		}
		commit()
		stop := s.relayed()
		if err := <-result; isMade && err != nil || !isMade && (err == nil || !strings.Contains(err.Error(), "does not exist")) {
			t.Errorf("relay wal = %v, want success only if the slot is made: %t", err, isMade)
		}
		s.complete()
		stop()
	}
}

// An aggregate that was blocked in mode lanes stays in order through mode wal, and back.
func TestBlockedAggregateThroughModeWAL(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var isGood atomic.Bool
	s.refuse = func(m envelope.Message) bool { return m.AggregateID == "bad" && m.Version == 2 && !isGood.Load() }
	defer s.relayed()()
	grow := func(versions ...int64) {
		for _, v := range versions {
			s.append("bad", v)
		}
		s.eventually(int(versions[len(versions)-1])-1, deferredEvents)
	}
	grow(1, 2, 3)
	s.must(wal)
	grow(4, 5)
	s.must(lanes)
	grow(6)
	isGood.Store(true)
	s.must(wal)
	s.append("bad", 7)
	s.complete()
}
