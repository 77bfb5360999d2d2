package repair

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
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

func (s *shelf) source(bool) source {
	return source{name: "book", owner: shelfSide{s, "owner"}, projection: shelfSide{s, "projection"}, look: s.look}
}

func (s *shelf) moveFuture(context.Context) (bool, error) { return false, nil }

func (s shelfSide) bound(_ context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	if n := numberOf(after) + maxRows; n <= s.rows {
		return number(n), nil
	}
	return uuid.Max, nil
}

func (s shelfSide) digest(_ context.Context, after, upTo uuid.UUID, each bool) (digests []digest, _ error) {
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
			digests = append(digests, digest{ID: number(n), Rows: 1, Sum: of})
		}
	}
	if !each && sum != "" {
		digests = append(digests, digest{ID: upTo, Rows: int64(len(sum)), Sum: sum})
	}
	return digests, nil
}

func (s *shelf) look(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]seen, error) {
	found := make(map[uuid.UUID]seen)
	for _, id := range ids {
		if n := numberOf(id); n >= 1 && n <= s.rows && !s.repaired[id] {
			found[id] = seen{ownerVersion: 1, version: 1, fields: []string{"title"}}
		}
	}
	return found, nil
}

func (s *shelf) repair(_ context.Context, ids []uuid.UUID, _ admin.Entry) (int, []uuid.UUID, error) {
	if slices.Contains(ids, s.broken) {
		return 0, nil, errors.New("broken on purpose")
	}
	for _, id := range ids {
		s.repaired[id] = true
	}
	return len(ids), nil, nil
}

// A repair of all goes through the pages. If it fails in one, the pages before it are repaired, and
// the next repair does the rest. A dry run counts, and repairs nothing. Of named entries each is
// repaired once.
func TestRepairOfAll(t *testing.T) {
	t.Parallel()
	const rows = 3500
	s := &shelf{rows: rows, repaired: make(map[uuid.UUID]bool)}
	run := func(o admin.Operation, ids ...uuid.UUID) (repaired, error) { return repair(t.Context(), s, ids, o) }
	result, err := run(admin.Operation{DryRun: true})
	if err != nil || result.Matched != rows || result.Compared != rows || result.Kinds[different] != rows || len(s.repaired) > 0 {
		t.Errorf("dry run = %+v, %v, want %d that differ, and none repaired", result, err, rows)
	}
	why := admin.Operation{Reason: "test", Actor: admin.Actor{Name: "ann", Via: "command"}}
	if result, err := run(why, number(1), number(2), number(1)); err != nil || result.Matched != 2 || result.Done != 2 {
		t.Errorf("repair of two = %+v, %v, want both, each once", result, err)
	}
	s.broken = number(2050)
	if _, err := run(why); err == nil || len(s.repaired) != 2000 {
		t.Errorf("repair that fails = %v, with %d repaired, want 2000", err, len(s.repaired))
	}
	s.broken = uuid.Nil
	if result, err := run(why); err != nil || result.Done != 1500 || result.Matched != 1500 || result.Compared != rows {
		t.Errorf("the next repair = %+v, %v, want 1500", result, err)
	}
	if result, err := run(why); err != nil || result.Done != 0 || len(result.Kinds) > 0 {
		t.Errorf("another = %+v, %v, want none", result, err)
	}
}
