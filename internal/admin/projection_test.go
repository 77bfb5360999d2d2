package admin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
}

// shelfSide is one side of a shelf.
type shelfSide struct {
	*shelf
	name string
}

func (s *shelf) Source() reconcile.Source {
	return reconcile.Source{Type: "book", Owner: shelfSide{s, "owner"}, Projection: shelfSide{s, "projection"}, Entries: s}
}

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
	for _, id := range ids {
		s.repaired[id] = true
	}
	return len(ids), nil, nil
}

// A repair of all stops after so many differences, says where, and the same repair again
// does more.
func TestRepairStopsAndGoesOn(t *testing.T) {
	t.Parallel()
	s := &shelf{rows: 2*maxDiffering + 500, repaired: make(map[uuid.UUID]bool)}
	p := NewProjections(reconcile.Config{Rate: 1 << 40}, s)
	r := Request{Filter: Filter{Type: "book"}, Reason: "test", Actor: Actor{Name: "ann", Via: "command"}}
	for part, want := range []int{maxDiffering, maxDiffering, 500} {
		dry := r
		dry.DryRun = true
		before := len(s.repaired)
		if result, err := p.Repair(t.Context(), dry); err != nil || result.Matched != int64(want) || len(s.repaired) != before {
			t.Fatalf("part %d: dry run = %+v, %v, want %d", part, result, err, want)
		}
		result, err := p.Repair(t.Context(), r)
		if err != nil || result.Done != int64(want) || len(s.repaired) != before+want || (result.Stopped == uuid.Nil) != (part == 2) {
			t.Fatalf("part %d: repair = %+v, %v, want %d", part, result, err, want)
		}
	}
	if result, err := p.Compare(t.Context(), "book", nil, uuid.Nil); err != nil || result.Rows != int64(s.rows) || len(result.Differences) != 0 || result.UpTo != uuid.Max {
		t.Errorf("compare = %+v, %v, want no difference", result, err)
	}
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
