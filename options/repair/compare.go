package repair

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/repair/internal/sqlcgen"
)

// A comparison goes through the ids in pages. The two sides of a page have one checksum each. Only
// if these differ, it compares the checksums of the single rows, and then the rows themselves. Each
// side is read by itself, so the two may be in two databases. All reads are short statements.
//
// The projection is read before its owner. A version is published before it is projected, so an
// entry that is ahead of the owner, that the owner does not have, or that has the same version and
// another content is a difference at once. An entry that is missing or behind may only wait for its
// event. It is a difference if it still lacks the owner's version of the first look after
// comparison.wait. If the outbox had an event of it before the wait, it counts as pending instead.
//
// If a projector stands still for longer than comparison.wait, entries that are behind count as
// differences.

const (
	// pageRows is how many rows of a side one checksum covers. With the largest rows, of 50 kB, a page
	// is read within the time limit of a statement.
	pageRows = 1000
	// lookRows is how many rows are read whole at a time.
	lookRows = 100
	// maxDoubts is the number of ids with different checksums after which a comparison stops
	// reading pages, and compares these ids. It bounds the memory.
	maxDoubts = 10_000
	// readTimeout is how long the statements of a page may take. The database itself ends a slow
	// statement earlier. So this ends only those on a database that has become unreachable.
	readTimeout = time.Minute
)

// config has the limits of the comparison in the background.
type config struct {
	rate     int           // rows compared per second at most
	wait     time.Duration // how long an event may be on its way, from the outbox to the projection
	interval time.Duration // pause between two slices; after it another process may take a slice that was not finished
	slice    int           // rows of a slice; compared in less than interval
	pass     time.Duration // shortest time from the begin of one pass to the next
}

// background compares at most 17 million rows in a day. With more rows, a pass takes longer.
var background = config{rate: 2000, wait: time.Minute, interval: 5 * time.Minute, slice: 60_000, pass: 24 * time.Hour}

// side has the rows of an aggregate type on one of the two sides.
type side interface {
	// bound returns the id of the maxRows-th row with an id above the id after; uuid.Max if there
	// are fewer rows.
	bound(ctx context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error)
	// digest returns one checksum of the rows behind after up to and including upTo, and none if
	// there are no rows. If each is true, it returns one checksum per row, in any order.
	digest(ctx context.Context, after, upTo uuid.UUID, each bool) ([]digest, error)
}

// digest is a checksum of rows that does not depend on their order.
type digest struct {
	ID   uuid.UUID // of the row, or upTo
	Rows int64
	Sum  string
}

// source is an aggregate type with a projection.
type source struct {
	name              string        // the aggregate type
	pool              *pgxpool.Pool // of the projection
	owner, projection side
	// look reads the projection and then its owner. It returns only what differs. The owner then
	// has every version that the projection has, unless it has lost it.
	look func(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]seen, error)
	// pending returns the ids that have a pending event in the outbox.
	pending func(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error)
}

// seen is what both sides have of one id.
type seen struct {
	ownerVersion int64    // 0: the owner does not have it
	version      int64    // of the projection; 0: it does not have it
	fields       []string // that differ, if the versions are equal
}

// kind says how an entry of a projection differs.
type kind string

const (
	missing   kind = "missing"   // the projection does not have it
	behind    kind = "behind"    // it has an older version
	ahead     kind = "ahead"     // it has a version that the owner does not have
	different kind = "different" // it has the version, and another content
	extra     kind = "extra"     // the owner does not have it
)

// kinds are all kinds, in the order of their counts.
var kinds = []kind{missing, behind, ahead, different, extra}

func (s seen) kind() kind {
	switch {
	case s.ownerVersion == 0:
		return extra
	case s.version == 0:
		return missing
	case s.version < s.ownerVersion:
		return behind
	case s.version > s.ownerVersion:
		return ahead
	}
	return different
}

// mayWait reports whether an event on its way would explain the difference.
func (s seen) mayWait() bool { return s.kind() == missing || s.kind() == behind }

// difference is an entry of a projection that differs from its owner.
type difference struct {
	Type         string    `json:"type"`
	ID           uuid.UUID `json:"id"`
	Kind         kind      `json:"kind"`
	OwnerVersion int64     `json:"owner_version"` // 0: the owner does not have it
	Version      int64     `json:"version"`       // 0: the projection does not have it
	Fields       []string  `json:"fields,omitempty"`
}

// comparison compares one source, with limits.
type comparison struct {
	source

	rate int
	wait time.Duration
	beat func() // is called before each page, each part of the rows and each pause
}

// compared is the result of a comparison.
type compared struct {
	upTo          uuid.UUID // the last id that was compared; uuid.Max after the last page
	rows, pending int64     // rows of the owner, and how many entries only wait for an event in the outbox
	differences   []difference
}

// compare compares the ids behind [slice.after], until it has read maxRows rows or all, or has maxDoubts doubts.
func (c comparison) compare(ctx context.Context, after uuid.UUID, maxRows int) (compared, error) {
	result := compared{upTo: after}
	var doubts []uuid.UUID
	for read := 0; result.upTo != uuid.Max && read < maxRows && len(doubts) < maxDoubts; read += pageRows {
		begun := time.Now()
		c.beat()
		rows, upTo, ids, err := c.page(ctx, result.upTo)
		if err != nil {
			return result, err
		}
		result.upTo = upTo
		result.rows += rows
		doubts = append(doubts, ids...)
		// For every page but the last, a side has read pageRows rows. The checksums count fewer,
		// because they leave out tombstones.
		if upTo != uuid.Max {
			rows = pageRows
		}
		if err := c.sleep(ctx, time.Duration(rows)*time.Second/time.Duration(c.rate)-time.Since(begun)); err != nil {
			return result, err
		}
	}
	var err error
	result.differences, result.pending, err = c.settle(ctx, doubts)
	return result, err
}

// compareIDs compares some ids.
func (c comparison) compareIDs(ctx context.Context, ids []uuid.UUID) (compared, error) {
	differences, pending, err := c.settle(ctx, ids)
	return compared{upTo: uuid.Max, rows: int64(len(ids)), pending: pending, differences: differences}, err
}

// page compares the next page behind after by checksums. It returns the number of its rows at the
// owner, its last id, and the ids whose checksums differ.
func (s source) page(ctx context.Context, after uuid.UUID) (rows int64, upTo uuid.UUID, differ []uuid.UUID, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	// The smaller bound limits the rows of both sides: one side may have many more.
	upTo, err = s.owner.bound(ctx, after, pageRows)
	if err != nil {
		return 0, after, nil, err
	}
	other, err := s.projection.bound(ctx, after, pageRows)
	if err != nil {
		return 0, after, nil, err
	}
	if bytes.Compare(other[:], upTo[:]) < 0 {
		upTo = other
	}
	projection, owner, err := s.digests(ctx, after, upTo, false)
	if err != nil {
		return 0, after, nil, err
	}
	rows = owner[upTo].Rows
	if owner[upTo] == projection[upTo] {
		return rows, upTo, nil, nil
	}
	projection, owner, err = s.digests(ctx, after, upTo, true)
	if err != nil {
		return 0, after, nil, err
	}
	for id, digest := range owner {
		if projection[id] != digest {
			differ = append(differ, id)
		}
	}
	for id := range projection {
		if _, ok := owner[id]; !ok {
			differ = append(differ, id)
		}
	}
	return rows, upTo, differ, nil
}

func (s source) digests(ctx context.Context, after, upTo uuid.UUID, each bool) (projection, owner map[uuid.UUID]digest, err error) {
	var both [2]map[uuid.UUID]digest
	for i, side := range []side{s.projection, s.owner} {
		digests, err := side.digest(ctx, after, upTo, each)
		if err != nil {
			return nil, nil, err
		}
		both[i] = make(map[uuid.UUID]digest, len(digests))
		for _, digest := range digests {
			both[i][digest.ID] = digest
		}
	}
	return both[0], both[1], nil
}

// settle reads the rows of ids, and returns the differences. It repeatedly reads entries that may
// wait for their event, until all have it or the wait is over.
func (c comparison) settle(ctx context.Context, ids []uuid.UUID) (differences []difference, pending int64, err error) {
	found, err := c.lookAt(ctx, ids)
	if err != nil {
		return nil, 0, err
	}
	waiting := make(map[uuid.UUID]seen)
	for id, s := range found {
		if s.mayWait() {
			waiting[id] = s
		} else {
			differences = append(differences, c.difference(id, s))
		}
	}
	if len(waiting) == 0 {
		return differences, 0, nil
	}
	// Before the wait: an event that is not in the outbox now was published, and has all of the
	// wait to arrive.
	inOutbox, err := c.pending(ctx, slices.Collect(maps.Keys(waiting)))
	if err != nil {
		return nil, 0, err
	}
	for _, part := range []time.Duration{64, 64, 32, 16, 8, 4, 2} { // the sum of the parts is c.wait
		if err := c.sleep(ctx, c.wait/part); err != nil {
			return nil, 0, err
		}
		wrong, err := c.lookAgain(ctx, waiting)
		if err != nil {
			return nil, 0, err
		}
		differences = append(differences, wrong...)
		if len(waiting) == 0 {
			return differences, 0, nil
		}
	}
	for id, s := range waiting {
		if inOutbox[id] {
			pending++
		} else {
			differences = append(differences, c.difference(id, s))
		}
	}
	return differences, pending, nil
}

// lookAgain reads the waiting entries again. It removes those that have reached the owner's version of the
// first look. It also removes, and returns, those whose difference no late event explains.
func (c comparison) lookAgain(ctx context.Context, waiting map[uuid.UUID]seen) (wrong []difference, err error) {
	found, err := c.lookAt(ctx, slices.Collect(maps.Keys(waiting)))
	if err != nil {
		return nil, err
	}
	for id, first := range waiting {
		now, differs := found[id]
		if differs && now.mayWait() && now.version < first.ownerVersion {
			continue
		}
		delete(waiting, id)
		if differs && !now.mayWait() {
			wrong = append(wrong, c.difference(id, now))
		}
	}
	return wrong, nil
}

// lookAt reads any number of ids, lookRows at a time.
func (c comparison) lookAt(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]seen, error) {
	found := make(map[uuid.UUID]seen)
	for some := range slices.Chunk(ids, lookRows) {
		c.beat()
		inTime, cancel := context.WithTimeout(ctx, readTimeout)
		part, err := c.look(inTime, some)
		cancel()
		if err != nil {
			return nil, err
		}
		maps.Copy(found, part)
	}
	return found, nil
}

func (c comparison) difference(id uuid.UUID, s seen) difference {
	return difference{Type: c.name, ID: id, Kind: s.kind(), OwnerVersion: s.ownerVersion, Version: s.version, Fields: s.fields}
}

// sleep waits for d. It returns the error of ctx if that ends first.
func (c comparison) sleep(ctx context.Context, d time.Duration) error {
	c.beat()
	return gax.Sleep(ctx, d)
}

// pendingOf returns a function that finds which of the given aggregates have a pending event.
func pendingOf(commands *pgxpool.Pool, aggregateType string) func(context.Context, []uuid.UUID) (map[uuid.UUID]bool, error) {
	return func(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
		texts := make([]string, len(ids))
		for i, id := range ids {
			texts[i] = id.String()
		}
		found, err := sqlcgen.New(commands).ListPendingAggregates(ctx, aggregateType, texts)
		if err != nil {
			return nil, pg.Wrap(err, "find pending events of %d aggregates", len(ids))
		}
		pending := make(map[uuid.UUID]bool, len(found))
		for _, text := range found {
			id, err := uuid.Parse(text)
			if err != nil {
				return nil, fmt.Errorf("aggregate id %q: %w", text, err)
			}
			pending[id] = true
		}
		return pending, nil
	}
}
