package repair

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric/noop"
)

// fakeSide is a side: versions, by id.
type fakeSide struct {
	mu       sync.Mutex
	versions map[uuid.UUID]int64 // guarded by mu
	sorted   []uuid.UUID         // their ids; nil after a change
	buried   map[uuid.UUID]bool  // tombstones, which no checksum counts; not changed
	largest  int64               // the most rows of a checksum
}

func fakeSideOf(rows int) *fakeSide {
	s := &fakeSide{versions: make(map[uuid.UUID]int64)}
	for n := range rows {
		s.versions[id(n)] = 1
	}
	return s
}

// id returns the n-th id: ids ascend with n.
func id(n int) (id uuid.UUID) {
	binary.BigEndian.PutUint32(id[:], uint32(n)+1)
	return id
}

func (s *fakeSide) set(id uuid.UUID, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[id] = version
	if version == 0 {
		delete(s.versions, id)
	}
	s.sorted = nil
}

func (s *fakeSide) get(id uuid.UUID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[id]
}

func (s *fakeSide) behind(after uuid.UUID) []uuid.UUID {
	order := func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
	if s.sorted == nil {
		s.sorted = slices.SortedFunc(maps.Keys(s.versions), order)
	}
	i, found := slices.BinarySearchFunc(s.sorted, after, order)
	if found {
		i++
	}
	return s.sorted[i:]
}

func (s *fakeSide) bound(_ context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ids := s.behind(after); len(ids) >= maxRows {
		return ids[maxRows-1], nil
	}
	return uuid.Max, nil
}

func (s *fakeSide) digest(_ context.Context, after, upTo uuid.UUID, each bool) (digests []digest, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := digest{ID: upTo}
	var sums []string
	for _, id := range s.behind(after) {
		if bytes.Compare(id[:], upTo[:]) > 0 {
			break
		}
		if s.buried[id] {
			continue
		}
		one := digest{ID: id, Rows: 1, Sum: id.String() + strconv.FormatInt(s.versions[id], 10)}
		all.Rows++
		sums = append(sums, one.Sum)
		digests = append(digests, one)
	}
	s.largest = max(s.largest, all.Rows)
	if each || len(digests) == 0 {
		return digests, nil
	}
	all.Sum = strings.Join(sums, " ")
	return []digest{all}, nil
}

// entries has an owner, its projection, and the ids with pending events.
type entries struct {
	owner, projection *fakeSide
	inOutbox          []uuid.UUID
}

func (e entries) source() source {
	return source{name: "order", owner: e.owner, projection: e.projection, look: e.look, pending: e.pending}
}

// compared returns a comparison at a rate.
func (e entries) compared(rate int) comparison {
	return comparison{source: e.source(), rate: rate, wait: time.Minute, beat: func() {}}
}

func (e entries) look(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]seen, error) {
	found := make(map[uuid.UUID]seen)
	for _, id := range ids {
		if s := (seen{version: e.projection.get(id), ownerVersion: e.owner.get(id)}); s.version != s.ownerVersion {
			found[id] = s
		}
	}
	return found, nil
}

func (e entries) pending(context.Context, []uuid.UUID) (map[uuid.UUID]bool, error) {
	pending := make(map[uuid.UUID]bool)
	for _, id := range e.inOutbox {
		pending[id] = true
	}
	return pending, nil
}

// kindsOf returns the kinds of differences, by id.
func kindsOf(differences []difference) map[uuid.UUID]kind {
	found := make(map[uuid.UUID]kind)
	for _, d := range differences {
		found[d.ID] = d.Kind
	}
	return found
}

// All differences are found in pages, also behind the last id of a side, and no checksum has
// more than a page of rows.
func TestCompareFindsWhatDiffers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := entries{owner: fakeSideOf(2500), projection: fakeSideOf(2500)}
		want := map[uuid.UUID]kind{}
		for n := range 3000 { // many more than the owner has, behind its last id
			e.projection.set(id(10_000+n), 1)
			want[id(10_000+n)] = extra
		}
		e.projection.set(id(0), 0)
		e.projection.set(id(999), 2)
		e.owner.set(id(1000), 5)
		e.owner.set(id(2499), 0)
		want[id(0)], want[id(999)], want[id(1000)], want[id(2499)] = missing, ahead, behind, extra
		got, err := e.compared(2000).compare(t.Context(), uuid.Nil, 1e6)
		if err != nil || got.upTo != uuid.Max || got.rows != 2499 || got.pending != 0 {
			t.Errorf("compare() = up to %s, %d rows, %d pending, %v, want all 2,499", got.upTo, got.rows, got.pending, err)
		}
		if diff := cmp.Diff(want, kindsOf(got.differences)); diff != "" {
			t.Errorf("differences (-want +got):\n%s", diff)
		}
		if most := max(e.owner.largest, e.projection.largest); most > 1000 {
			t.Errorf("a checksum has %d rows, want at most 1,000", most)
		}
	})
}

// Rows are compared no faster than the rate, and a comparison continues where another stopped.
func TestCompareKeepsTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := entries{owner: fakeSideOf(5000), projection: fakeSideOf(5000)}
		e.projection.set(id(4500), 3)
		begun, beats := time.Now(), 0
		c := e.compared(100)
		c.beat = func() { beats++ }
		first, err := c.compare(t.Context(), uuid.Nil, 3000)
		if err != nil || first.rows != 3000 || first.upTo != id(2999) || len(first.differences) > 0 {
			t.Errorf("compare() = %+v, %v, want 3,000 rows without a difference", first, err)
		}
		if took := time.Since(begun); took != 30*time.Second || beats < 3 {
			t.Errorf("3,000 rows took %s with %d beats, want 30 s with one per page", took, beats)
		}
		rest, err := c.compare(t.Context(), first.upTo, 1e6)
		if err != nil || rest.rows != 2000 || rest.upTo != uuid.Max || kindsOf(rest.differences)[id(4500)] != ahead {
			t.Errorf("compare() = %+v, %v, want the other 2,000 with one difference", rest, err)
		}
	})
}

// Tombstones count for the rate and for the size of a slice, on whichever side they are: a
// million of them must not be read at once.
func TestTombstonesAreRowsToo(t *testing.T) {
	t.Parallel()
	for name, buried := range map[string]func(*entries) *fakeSide{
		"of the owner":      func(e *entries) *fakeSide { return e.owner },
		"of the projection": func(e *entries) *fakeSide { return e.projection },
	} {
		synctest.Test(t, func(t *testing.T) {
			e := entries{owner: fakeSideOf(100), projection: fakeSideOf(100)}
			s := buried(&e)
			s.buried = make(map[uuid.UUID]bool)
			for n := 100; n < 5000; n++ {
				s.set(id(n), 1)
				s.buried[id(n)] = true
			}
			begun := time.Now()
			got, err := e.compared(100).compare(t.Context(), uuid.Nil, 3000)
			if err != nil || got.rows != 100 || got.upTo != id(2999) || len(got.differences) > 0 || time.Since(begun) != 30*time.Second {
				t.Errorf("tombstones %s: compare() = %+v, %v after %s, want 3,000 rows in 30 s", name, got, err, time.Since(begun))
			}
		})
	}
}

// An entry that lacks its event is read again. It is no difference once it has the owner's version
// of the first look, even if the owner has changed since, or while the event is in the outbox.
func TestEventsOnTheirWayAreNoDifference(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		inOutbox     bool
		arrive       int64 // the version that arrives before the end of the wait; 0: none
		ownerVersion int64 // the version of the owner then
		want         kind
		pending      int64
	}{
		"it arrives":               {arrive: 4, ownerVersion: 4},
		"the owner goes on":        {arrive: 4, ownerVersion: 9},
		"not far enough":           {arrive: 3, ownerVersion: 9, want: behind},
		"never":                    {ownerVersion: 4, want: behind},
		"too far":                  {arrive: 5, ownerVersion: 4, want: ahead},
		"in the outbox":            {ownerVersion: 4, inOutbox: true, pending: 1},
		"out of the outbox":        {arrive: 4, ownerVersion: 4, inOutbox: true},
		"its owner is gone":        {arrive: 4, ownerVersion: 0, want: extra},
		"in the outbox, and ahead": {arrive: 5, ownerVersion: 4, inOutbox: true, want: ahead},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := entries{owner: fakeSideOf(10), projection: fakeSideOf(10)}
			e.owner.set(id(7), 4)
			if test.inOutbox {
				e.inOutbox = []uuid.UUID{id(7)}
			}
			const wait = time.Minute
			var changed sync.WaitGroup
			changed.Go(func() {
				time.Sleep(wait - time.Second)
				if test.arrive > 0 {
					e.projection.set(id(7), test.arrive)
				}
				e.owner.set(id(7), test.ownerVersion)
			})
			begun := time.Now()
			got, err := e.compared(2000).compare(t.Context(), uuid.Nil, 100)
			changed.Wait()
			if err != nil || kindsOf(got.differences)[id(7)] != test.want || got.pending != test.pending {
				t.Errorf("%s: compare() = %+v, %v, want %q and %d pending", name, got, err, test.want, test.pending)
			}
			if took := time.Since(begun); took < wait || took > wait+time.Second {
				t.Errorf("%s: compare() took %s, want %s", name, took, wait)
			}
		})
	}
}

// A comparison that is sure of all its differences does not wait.
func TestCertainDifferencesNeedNoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := entries{owner: fakeSideOf(10), projection: fakeSideOf(10)}
		e.projection.set(id(3), 2)
		e.owner.set(id(4), 0)
		begun := time.Now()
		got, err := e.compared(2000).compareIDs(t.Context(), []uuid.UUID{id(2), id(3), id(4)})
		want := map[uuid.UUID]kind{id(3): ahead, id(4): extra}
		if err != nil || !cmp.Equal(kindsOf(got.differences), want) || time.Since(begun) > 0 {
			t.Errorf("compareIDs() = %+v, %v after %s, want %v at once", got, err, time.Since(begun), want)
		}
	})
}

// memory is a progress that keeps one slice.
type memory struct {
	mu    sync.Mutex
	after uuid.UUID // guarded by mu, as all below
	saved []compared
	fails int // claims that fail
}

func (p *memory) claim(_ context.Context, aggregateType string, _ time.Duration) (slice, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails--; p.fails >= 0 {
		return slice{}, false, errors.New("the database is unavailable")
	}
	return slice{name: aggregateType, after: p.after}, true, nil
}

func (p *memory) save(_ context.Context, _ slice, result compared, _ time.Duration) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saved = append(p.saved, result)
	if p.after = result.upTo; p.after == uuid.Max {
		p.after = uuid.Nil
	}
	return true, nil
}

// The loop repeatedly goes through all ids in slices. It continues after a failure, logs
// differences, is never stuck, and ends with its context.
func TestLoopComparesInSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := entries{owner: fakeSideOf(5000), projection: fakeSideOf(5000)}
		for n := range 30 {
			e.projection.set(id(n), 2)
		}
		p := &memory{fails: 1}
		var log bytes.Buffer
		cfg := background
		cfg.slice = 2000
		loop, err := newLoop(cfg, []source{e.source()}, p, slog.New(slog.NewTextHandler(&log, nil)), noop.Meter{})
		must(t, err)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		var ran sync.WaitGroup
		ran.Go(func() {
			if err := loop.run(ctx); err != nil {
				t.Errorf("run() = %v, want nil", err)
			}
		})
		for ctx.Err() == nil {
			time.Sleep(time.Minute)
			if err := loop.beats.Check(); err != nil {
				t.Error(err)
			}
		}
		ran.Wait()
		if len(p.saved) < 9 { // of at least twelve, the first fails
			t.Fatalf("%d slices in an hour, want at least 9", len(p.saved))
		}
		for i, result := range p.saved[:6] {
			want := []int64{2000, 2000, 1000}[i%3]
			if result.rows != want || (len(result.differences) == 30) != (i%3 == 0) {
				t.Errorf("slice %d has %d rows and %d differences, want %d rows, and 30 in the first of a pass", i, result.rows, len(result.differences), want)
			}
		}
		text := log.String()
		if !strings.Contains(text, "comparison failed") || strings.Count(text, "entry differs") != 10*strings.Count(text, "entries differ") || !strings.Contains(text, "differences=30") {
			t.Errorf("log should have the failure, ten entries per slice that differs, and their number:\n%s", text)
		}
	})
}
