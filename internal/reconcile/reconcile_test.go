package reconcile_test

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

	"example.com/videocatalog/internal/reconcile"
)

// side is a table of versions, by id.
type side struct {
	mu       sync.Mutex
	versions map[uuid.UUID]int64 // guarded by mu
	sorted   []uuid.UUID         // their ids; nil after a change
	buried   map[uuid.UUID]bool  // tombstones, which no checksum counts; not changed
	largest  int64               // rows of a checksum
}

func sideOf(rows int) *side {
	s := &side{versions: make(map[uuid.UUID]int64)}
	for n := range rows {
		s.versions[id(n)] = 1
	}
	return s
}

// id returns ids in an order.
func id(n int) (id uuid.UUID) {
	binary.BigEndian.PutUint32(id[:], uint32(n)+1)
	return id
}

func (s *side) set(id uuid.UUID, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[id] = version
	if version == 0 {
		delete(s.versions, id)
	}
	s.sorted = nil
}

func (s *side) get(id uuid.UUID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[id]
}

func (s *side) behind(after uuid.UUID) []uuid.UUID {
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

func (s *side) Bound(_ context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ids := s.behind(after); len(ids) >= maxRows {
		return ids[maxRows-1], nil
	}
	return uuid.Max, nil
}

func (s *side) Digest(_ context.Context, after, upTo uuid.UUID, each bool) (digests []reconcile.Digest, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := reconcile.Digest{ID: upTo}
	var sums []string
	for _, id := range s.behind(after) {
		if bytes.Compare(id[:], upTo[:]) > 0 {
			break
		}
		if s.buried[id] {
			continue
		}
		one := reconcile.Digest{ID: id, Rows: 1, Sum: id.String() + strconv.FormatInt(s.versions[id], 10)}
		all.Rows++
		sums = append(sums, one.Sum)
		digests = append(digests, one)
	}
	s.largest = max(s.largest, all.Rows)
	if each || len(digests) == 0 {
		return digests, nil
	}
	all.Sum = strings.Join(sums, " ")
	return []reconcile.Digest{all}, nil
}

// entries are two sides, and what the outbox has.
type entries struct {
	owner, projection *side
	inOutbox          []uuid.UUID
}

func (e entries) source() reconcile.Source {
	return reconcile.Source{Type: "order", Owner: e.owner, Projection: e.projection, Entries: e}
}

func (e entries) Look(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]reconcile.Seen, error) {
	found := make(map[uuid.UUID]reconcile.Seen)
	for _, id := range ids {
		if seen := (reconcile.Seen{Version: e.projection.get(id), OwnerVersion: e.owner.get(id)}); seen.Version != seen.OwnerVersion {
			found[id] = seen
		}
	}
	return found, nil
}

func (e entries) Pending(context.Context, []uuid.UUID) (map[uuid.UUID]bool, error) {
	pending := make(map[uuid.UUID]bool)
	for _, id := range e.inOutbox {
		pending[id] = true
	}
	return pending, nil
}

// kinds returns the kinds of differences, by id.
func kinds(differences []reconcile.Difference) map[uuid.UUID]reconcile.Kind {
	found := make(map[uuid.UUID]reconcile.Kind)
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
		e := entries{owner: sideOf(2500), projection: sideOf(2500)}
		want := map[uuid.UUID]reconcile.Kind{}
		for n := range 3000 { // many more than the owner has, behind its last
			e.projection.set(id(10_000+n), 1)
			want[id(10_000+n)] = reconcile.Extra
		}
		e.projection.set(id(0), 0)
		e.projection.set(id(999), 2)
		e.owner.set(id(1000), 5)
		e.owner.set(id(2499), 0)
		want[id(0)], want[id(999)], want[id(1000)], want[id(2499)] = reconcile.Missing, reconcile.Ahead, reconcile.Behind, reconcile.Extra
		got, err := reconcile.Compare(t.Context(), reconcile.Config{}, e.source(), uuid.Nil, 1e6, nil)
		if err != nil || got.UpTo != uuid.Max || got.Rows != 2499 || got.Pending != 0 {
			t.Errorf("Compare() = up to %s, %d rows, %d pending, %v, want all 2,499", got.UpTo, got.Rows, got.Pending, err)
		}
		if diff := cmp.Diff(want, kinds(got.Differences)); diff != "" {
			t.Errorf("differences (-want +got):\n%s", diff)
		}
		if most := max(e.owner.largest, e.projection.largest); most > 1000 {
			t.Errorf("a checksum has %d rows, want at most 1,000", most)
		}
	})
}

// Rows are compared no faster than the rate, and a comparison goes on where another stopped.
func TestCompareKeepsTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := entries{owner: sideOf(5000), projection: sideOf(5000)}
		e.projection.set(id(4500), 3)
		begun, beats := time.Now(), 0
		cfg := reconcile.Config{Rate: 100}
		first, err := reconcile.Compare(t.Context(), cfg, e.source(), uuid.Nil, 3000, func() { beats++ })
		if err != nil || first.Rows != 3000 || first.UpTo != id(2999) || len(first.Differences) > 0 {
			t.Errorf("Compare() = %+v, %v, want 3,000 rows without a difference", first, err)
		}
		if took := time.Since(begun); took != 30*time.Second || beats < 3 {
			t.Errorf("3,000 rows took %s with %d beats, want 30 s with one per page", took, beats)
		}
		rest, err := reconcile.Compare(t.Context(), cfg, e.source(), first.UpTo, 1e6, nil)
		if err != nil || rest.Rows != 2000 || rest.UpTo != uuid.Max || kinds(rest.Differences)[id(4500)] != reconcile.Ahead {
			t.Errorf("Compare() = %+v, %v, want the other 2,000 with one difference", rest, err)
		}
	})
}

// Tombstones count for the rate and for the size of a slice, on whichever side they are: a
// million of them must not be read at once.
func TestTombstonesAreRowsToo(t *testing.T) {
	t.Parallel()
	for name, buried := range map[string]func(*entries) *side{
		"of the owner":      func(e *entries) *side { return e.owner },
		"of the projection": func(e *entries) *side { return e.projection },
	} {
		synctest.Test(t, func(t *testing.T) {
			e := entries{owner: sideOf(100), projection: sideOf(100)}
			s := buried(&e)
			s.buried = make(map[uuid.UUID]bool)
			for n := 100; n < 5000; n++ {
				s.set(id(n), 1)
				s.buried[id(n)] = true
			}
			begun := time.Now()
			got, err := reconcile.Compare(t.Context(), reconcile.Config{Rate: 100}, e.source(), uuid.Nil, 3000, nil)
			if err != nil || got.Rows != 100 || got.UpTo != id(2999) || len(got.Differences) > 0 || time.Since(begun) != 30*time.Second {
				t.Errorf("tombstones %s: Compare() = %+v, %v after %s, want 3,000 rows in 30 s", name, got, err, time.Since(begun))
			}
		})
	}
}

// An entry without its event is looked at again. It is no difference once it has the version
// of the first look, even if the owner has gone on, or while the event is in the outbox.
func TestEventsOnTheirWayAreNoDifference(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		inOutbox     bool
		arrive       int64 // the version that arrives before the end of the wait; 0: none
		ownerVersion int64 // the version of the owner then
		want         reconcile.Kind
		pending      int64
	}{
		"it arrives":               {arrive: 4, ownerVersion: 4},
		"the owner goes on":        {arrive: 4, ownerVersion: 9},
		"not far enough":           {arrive: 3, ownerVersion: 9, want: reconcile.Behind},
		"never":                    {ownerVersion: 4, want: reconcile.Behind},
		"too far":                  {arrive: 5, ownerVersion: 4, want: reconcile.Ahead},
		"in the outbox":            {ownerVersion: 4, inOutbox: true, pending: 1},
		"out of the outbox":        {arrive: 4, ownerVersion: 4, inOutbox: true},
		"its owner is gone":        {arrive: 4, ownerVersion: 0, want: reconcile.Extra},
		"in the outbox, and ahead": {arrive: 5, ownerVersion: 4, inOutbox: true, want: reconcile.Ahead},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := entries{owner: sideOf(10), projection: sideOf(10)}
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
			got, err := reconcile.Compare(t.Context(), reconcile.Config{Wait: wait}, e.source(), uuid.Nil, 100, nil)
			changed.Wait()
			if err != nil || kinds(got.Differences)[id(7)] != test.want || got.Pending != test.pending {
				t.Errorf("%s: Compare() = %+v, %v, want %q and %d pending", name, got, err, test.want, test.pending)
			}
			if took := time.Since(begun); took < wait || took > wait+time.Second {
				t.Errorf("%s: Compare() took %s, want %s", name, took, wait)
			}
		})
	}
}

// A comparison that is sure of all its differences does not wait.
func TestCertainDifferencesNeedNoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := entries{owner: sideOf(10), projection: sideOf(10)}
		e.projection.set(id(3), 2)
		e.owner.set(id(4), 0)
		begun := time.Now()
		got, err := reconcile.CompareIDs(t.Context(), reconcile.Config{}, e.source(), []uuid.UUID{id(2), id(3), id(4)})
		want := map[uuid.UUID]reconcile.Kind{id(3): reconcile.Ahead, id(4): reconcile.Extra}
		if err != nil || !cmp.Equal(kinds(got.Differences), want) || time.Since(begun) > 0 {
			t.Errorf("CompareIDs() = %+v, %v after %s, want %v at once", got, err, time.Since(begun), want)
		}
	})
}

// progress keeps one slice.
type progress struct {
	mu    sync.Mutex
	after uuid.UUID // guarded by mu, as all below
	saved []reconcile.Result
	fails int // claims that fail
}

func (p *progress) Claim(_ context.Context, aggregateType string, _ time.Duration) (reconcile.Slice, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails--; p.fails >= 0 {
		return reconcile.Slice{}, false, errors.New("the database is unavailable")
	}
	return reconcile.Slice{Type: aggregateType, After: p.after}, true, nil
}

func (p *progress) Save(_ context.Context, _ reconcile.Slice, result reconcile.Result, _ time.Duration) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saved = append(p.saved, result)
	if p.after = result.UpTo; p.after == uuid.Max {
		p.after = uuid.Nil
	}
	return true, nil
}

// The loop goes through all ids in slices, again and again. It goes on after a failure, logs
// what differs, is never stuck, and ends with its context.
func TestLoopComparesInSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := entries{owner: sideOf(5000), projection: sideOf(5000)}
		for n := range 30 {
			e.projection.set(id(n), 2)
		}
		p := &progress{fails: 1}
		var log bytes.Buffer
		loop, err := reconcile.NewLoop(reconcile.Config{SliceRows: 2000}, []reconcile.Source{e.source()}, p, slog.New(slog.NewTextHandler(&log, nil)), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		var ran sync.WaitGroup
		ran.Go(func() {
			if err := loop.Run(ctx); err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		})
		for ctx.Err() == nil {
			time.Sleep(time.Minute)
			if err := loop.Heartbeat().Check(); err != nil {
				t.Error(err)
			}
		}
		ran.Wait()
		if len(p.saved) < 9 { // of at least twelve, the first fails
			t.Fatalf("%d slices in an hour, want at least 9", len(p.saved))
		}
		for i, result := range p.saved[:6] {
			want := []int64{2000, 2000, 1000}[i%3]
			if result.Rows != want || (len(result.Differences) == 30) != (i%3 == 0) {
				t.Errorf("slice %d has %d rows and %d differences, want %d rows, and 30 in the first of a pass", i, result.Rows, len(result.Differences), want)
			}
		}
		text := log.String()
		if !strings.Contains(text, "comparison failed") || strings.Count(text, "entry differs") != 10*strings.Count(text, "entries differ") || !strings.Contains(text, "differences=30") {
			t.Errorf("log should have the failure, ten entries per slice that differs, and their number:\n%s", text)
		}
	})
}

// A Config is checked: the slices must not be longer than the time between them.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	if err := (reconcile.Config{}).Validate(); err != nil {
		t.Errorf("Validate() of the zero value = %v", err)
	}
	for want, cfg := range map[string]reconcile.Config{
		"Wait":     {Wait: -1},
		"Interval": {SliceRows: 1e6},
	} {
		if _, err := reconcile.NewLoop(cfg, nil, nil, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewLoop(%+v) = %v, want an error about %s", cfg, err, want)
		}
	}
}
