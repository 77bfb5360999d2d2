package admin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/reconcile"
)

// number returns the id of a row.
func number(n int) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

func numberOf(id uuid.UUID) int { return int(binary.BigEndian.Uint64(id[8:])) }

// shelf is a projection with the rows 1 to rows, all of which differ from their owner until
// they are repaired.
type shelf struct {
	rows     int
	repaired map[uuid.UUID]bool
	broken   uuid.UUID // cannot be repaired
}

// shelfSide is one side of a shelf.
type shelfSide struct {
	*shelf
	name string
}

func (s *shelf) Source() reconcile.Source {
	return reconcile.Source{Type: "book", Owner: shelfSide{s, "owner"}, Projection: shelfSide{s, "projection"}, Entries: s}
}

func (s *shelf) Whole() reconcile.Source { return s.Source() }

func (s shelfSide) Bound(_ context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	if n := numberOf(after) + maxRows; n <= s.rows {
		return number(n), nil
	}
	return uuid.Max, nil
}

func (s shelfSide) Digest(_ context.Context, after, upTo uuid.UUID, each bool) (digests []reconcile.Digest, _ error) {
	last := s.rows
	if upTo != uuid.Max {
		last = numberOf(upTo)
	}
	sum := ""
	for n := numberOf(after) + 1; n <= last; n++ {
		of := "owner"
		if !s.repaired[number(n)] {
			of = s.name
		}
		if sum += of[:1]; each {
			digests = append(digests, reconcile.Digest{ID: number(n), Rows: 1, Sum: of})
		}
	}
	if !each && sum != "" {
		digests = append(digests, reconcile.Digest{ID: upTo, Rows: int64(len(sum)), Sum: sum})
	}
	return digests, nil
}

func (s *shelf) Look(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]reconcile.Seen, error) {
	seen := make(map[uuid.UUID]reconcile.Seen)
	for _, id := range ids {
		if n := numberOf(id); n >= 1 && n <= s.rows && !s.repaired[id] {
			seen[id] = reconcile.Seen{OwnerVersion: 1, Version: 1, Fields: []string{"title"}}
		}
	}
	return seen, nil
}

func (s *shelf) Pending(context.Context, []uuid.UUID) (map[uuid.UUID]bool, error) { return nil, nil }

func (s *shelf) RepairEntries(_ context.Context, ids []uuid.UUID, _ Entry) (int, []uuid.UUID, error) {
	if slices.Contains(ids, s.broken) {
		return 0, nil, errors.New("broken on purpose")
	}
	for _, id := range ids {
		s.repaired[id] = true
	}
	return len(ids), nil, nil
}

// A repair of all goes through the pages. If it fails in one, the pages before it are repaired,
// and the next repair does the rest. A dry run counts, and repairs nothing. More than was
// confirmed is not repaired.
func TestRepairOfAll(t *testing.T) {
	t.Parallel()
	const rows = 3500
	s := &shelf{rows: rows, repaired: make(map[uuid.UUID]bool)}
	p := NewProjections(reconcile.Config{}, s)
	var compared []int64
	r := Request{Filter: Filter{Type: "book"}, Reason: "test", Actor: Actor{Name: "ann", Via: "command"}, Progress: func(done, _ int64) { compared = append(compared, done) }}
	dry := r
	dry.DryRun = true
	result, err := p.Repair(t.Context(), dry)
	if err != nil || result.Matched != rows || result.Compared != rows || result.Kinds[reconcile.Different] != rows || len(s.repaired) > 0 {
		t.Errorf("dry run = %+v, %v, want %d that differ, and none repaired", result, err, rows)
	}
	if want := []int64{1000, 2000, 3000, 3500}; !slices.Equal(compared, want) {
		t.Errorf("progress = %v, want %v", compared, want)
	}
	confirmed := r
	confirmed.Confirmed = 750
	if _, err := p.Repair(t.Context(), confirmed); !isKind(err, problem.Precondition) || len(s.repaired) > 750 {
		t.Errorf("repair of more than was confirmed = %v, with %d repaired, want at most 750", err, len(s.repaired))
	}
	s.broken = number(2050)
	if _, err := p.Repair(t.Context(), r); err == nil || len(s.repaired) != 2000 {
		t.Errorf("repair that fails = %v, with %d repaired, want 2000", err, len(s.repaired))
	}
	s.broken = uuid.Nil
	if result, err := p.Repair(t.Context(), r); err != nil || result.Done != 1500 || result.Matched != 1500 || result.Compared != rows {
		t.Errorf("the next repair = %+v, %v, want 1500", result, err)
	}
	if result, err := p.Repair(t.Context(), r); err != nil || result.Done != 0 || len(result.Kinds) > 0 {
		t.Errorf("another = %+v, %v, want none", result, err)
	}
}

func isKind(err error, kind problem.Kind) bool {
	known, ok := errors.AsType[*problem.Error](err)
	return ok && known.Kind == kind
}

// Of the named entries those are repaired that differ, each once. Wrong requests are refused
// before anything is compared, with the name of the field.
func TestRepairOfNamedEntries(t *testing.T) {
	t.Parallel()
	s := &shelf{rows: 10, repaired: map[uuid.UUID]bool{number(2): true}}
	p := NewProjections(reconcile.Config{}, s)
	request := func(aggregateType string, ids ...string) Request {
		return Request{Filter: Filter{Type: aggregateType, ID: strings.Join(ids, ",")}, Reason: "test", Actor: Actor{Name: "ann", Via: "command"}}
	}
	one, equal := number(1).String(), number(2).String()
	if result, err := p.Repair(t.Context(), request("book", one, equal, one)); err != nil || result.Matched != 1 || result.Done != 1 || len(s.repaired) != 2 {
		t.Errorf("repair = %+v, %v, want the one that differs", result, err)
	}
	aged := request("book")
	aged.Filter.Age = 1
	for _, test := range []struct {
		name, want string
		kind       problem.Kind
		request    Request
	}{
		{"no type", "type: must be an aggregate type with a projection that can be compared: book", problem.Invalid, request("", one)},
		{"another type", "type: must be an aggregate type", problem.Invalid, request("parcel")},
		{"an age", "filter: must have only a type and ids", problem.Invalid, aged},
		{"no UUID", "id: must be a UUID, or several with commas", problem.Invalid, request("book", one, "7")},
		{"what is equal", "no such entry of book differs", problem.NotFound, request("book", one, equal)},
		{"no reason", "reason: must say why", problem.Invalid, Request{Filter: Filter{Type: "book"}}},
	} {
		_, err := p.Repair(t.Context(), test.request)
		if known, ok := errors.AsType[*problem.Error](err); !ok || known.Kind != test.kind || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	if len(s.repaired) != 2 {
		t.Errorf("%d entries are repaired, want 2", len(s.repaired))
	}
}
