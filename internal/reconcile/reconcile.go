// Package reconcile compares a projection with its owner, and finds what differs.
//
// It goes through the ids in pages. The two sides of a page have one checksum each. Only if
// these differ, it compares the checksums of the single rows, and then the rows themselves.
// Each side is read by itself, so the two may be in two databases. All reads are short
// statements, and Config.Rate limits the rows per second.
//
// # What counts as a difference
//
// The projection is read before its owner. A version is published before it is projected,
// so an entry that is ahead of the owner, that the owner does not have, or that has the same
// version and another content is a difference at once. An entry that is missing or behind
// may only wait for its event. It counts if it still lacks the version of the first look
// after Config.Wait. If the outbox still has an event of it, it is pending and no difference.
//
// If a projector stands still for longer than Config.Wait, entries behind count as
// differences, because they are.
//
// # In the background
//
// [Loop] compares a slice of all ids at a time, and keeps in the database how far it has
// come. So any number of processes may run it, one of them compares at a time, and a pass
// goes on after a restart. It repairs nothing: that is for an operator.
package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/fields"
)

const (
	// pageRows is how many rows of a side one checksum has. With the largest rows, of 50
	// kB, a page is read in less than the time that a statement may take.
	pageRows = 1000
	// lookRows is how many rows are read whole at a time.
	lookRows = 100
	// maxDoubts is after how many ids with different checksums a comparison looks at them,
	// before it reads on. It bounds the memory.
	maxDoubts = 10_000
	// readTimeout is how long the statements of a page may take. The database itself ends a
	// slow statement earlier. So this ends only those on a database that has become
	// unreachable.
	readTimeout = time.Minute
)

// Side has the rows of an aggregate type on one of the two sides.
type Side interface {
	// Bound returns the id of the row that is the maxRows-th behind after, in the order of
	// the ids; uuid.Max if there are fewer rows.
	Bound(ctx context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error)
	// Digest returns one checksum of the rows behind after up to and including upTo, and
	// none if there are no rows. With each it returns one checksum per row, in any order.
	Digest(ctx context.Context, after, upTo uuid.UUID, each bool) ([]Digest, error)
}

// Digest is a checksum of rows that does not depend on their order.
type Digest struct {
	ID   uuid.UUID // of the row, or upTo
	Rows int64
	Sum  string
}

// Entries are the rows of both sides, by their ids.
type Entries interface {
	// Look reads the projection and then its owner. It returns only what differs.
	Look(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]Seen, error)
	// Pending returns those ids that have an event in the outbox.
	Pending(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error)
}

// Seen is what both sides have of one id.
type Seen struct {
	OwnerVersion int64    // 0: the owner does not have it
	Version      int64    // of the projection; 0: it does not have it
	Fields       []string // that differ, if the versions are equal
}

// Source is an aggregate type with a projection.
type Source struct {
	Type              string
	Owner, Projection Side
	Entries           Entries
}

// Kind says how an entry of a projection differs.
type Kind string

// The kinds.
const (
	Missing   Kind = "missing"   // the projection does not have it
	Behind    Kind = "behind"    // it has an older version
	Ahead     Kind = "ahead"     // it has a version that the owner does not have
	Different Kind = "different" // it has the version, and another content
	Extra     Kind = "extra"     // the owner does not have it
)

// Kind returns how the entry differs.
func (s Seen) Kind() Kind {
	switch {
	case s.OwnerVersion == 0:
		return Extra
	case s.Version == 0:
		return Missing
	case s.Version < s.OwnerVersion:
		return Behind
	case s.Version > s.OwnerVersion:
		return Ahead
	}
	return Different
}

// mayWait reports whether an event on its way would explain the difference.
func (s Seen) mayWait() bool { return s.Kind() == Missing || s.Kind() == Behind }

// Difference is an entry of a projection that is not what its owner has.
type Difference struct {
	Type         string    `json:"type"`
	ID           uuid.UUID `json:"id"`
	Kind         Kind      `json:"kind"`
	OwnerVersion int64     `json:"owner_version"` // 0: the owner does not have it
	Version      int64     `json:"version"`       // 0: the projection does not have it
	Fields       []string  `json:"fields,omitempty"`
}

// Config configures a comparison. A field with the zero value gets its default.
type Config struct {
	// Rate is how many rows are compared per second at most; default 2000.
	Rate int
	// Wait is how long an event may be on its way, from the outbox to the projection;
	// default 1 min.
	Wait time.Duration
	// Interval is the pause between two slices of a Loop; default 5 min. If a process dies
	// while it compares one, another begins it again after that time.
	Interval time.Duration
	// SliceRows is how many rows a slice of a Loop has; default 60,000. With the default of
	// Interval, 17 million rows are compared in a day. More take longer.
	SliceRows int
	// Pass is the shortest time from the begin of one pass to the next; default 24 h.
	Pass time.Duration
}

// WithDefaults returns the Config with every default filled in, as it is used.
func (c Config) WithDefaults() Config {
	c.Rate = cmp.Or(c.Rate, 2000)
	c.Wait = cmp.Or(c.Wait, time.Minute)
	c.Interval = cmp.Or(c.Interval, 5*time.Minute)
	c.SliceRows = cmp.Or(c.SliceRows, 60_000)
	c.Pass = cmp.Or(c.Pass, 24*time.Hour)
	return c
}

// Validate returns an error that names every mistake in a Config, after the defaults are
// filled in.
func (c Config) Validate() error {
	c = c.WithDefaults()
	errs := []error{fields.NotNegative(c)}
	if taken := c.Wait + time.Duration(c.SliceRows/max(1, c.Rate))*time.Second; taken > c.Interval {
		errs = append(errs, fmt.Errorf("SliceRows (%d) take, at Rate and with Wait, %s: that must not be longer than Interval (%s)", c.SliceRows, taken, c.Interval))
	}
	return errors.Join(errs...)
}

// Result is what a comparison has found.
type Result struct {
	// UpTo is the last id that was compared; uuid.Max if that are all.
	UpTo uuid.UUID
	// Rows is how many rows the owner has up to there, and Pending how many of those the
	// projection lacks only because their event is in the outbox.
	Rows, Pending int64
	// Differences are in no order.
	Differences []Difference
}

// Compare compares the ids behind after, until it has read maxRows rows, or all. It calls
// beat, which may be nil, at least once in half of Config.Wait.
func Compare(ctx context.Context, cfg Config, source Source, after uuid.UUID, maxRows int, beat func()) (Result, error) {
	c := comparison{cfg: cfg.WithDefaults(), source: source, beat: beat}
	if beat == nil {
		c.beat = func() {}
	}
	result := Result{UpTo: after}
	var doubts []uuid.UUID
	for read := 0; result.UpTo != uuid.Max && read < maxRows && len(doubts) < maxDoubts; read += pageRows {
		begun := time.Now()
		rows, upTo, different, err := c.page(ctx, result.UpTo)
		if err != nil {
			return result, err
		}
		result.UpTo = upTo
		result.Rows += rows
		doubts = append(doubts, different...)
		// A side has read pageRows rows for every page but the last, tombstones too, which no
		// checksum counts.
		if upTo != uuid.Max {
			rows = pageRows
		}
		if err := c.sleep(ctx, time.Duration(rows)*time.Second/time.Duration(c.cfg.Rate)-time.Since(begun)); err != nil {
			return result, err
		}
	}
	var err error
	result.Differences, result.Pending, err = c.settle(ctx, doubts)
	return result, err
}

// CompareIDs compares some ids.
func CompareIDs(ctx context.Context, cfg Config, source Source, ids []uuid.UUID) (Result, error) {
	c := comparison{cfg: cfg.WithDefaults(), source: source, beat: func() {}}
	differences, pending, err := c.settle(ctx, ids)
	return Result{UpTo: uuid.Max, Rows: int64(len(ids)), Pending: pending, Differences: differences}, err
}

// Page compares the next page behind after by checksums, however fast that is. It returns how
// many rows the owner has in it, the id where it ends, and the ids whose checksums differ.
func Page(ctx context.Context, source Source, after uuid.UUID) (rows int64, upTo uuid.UUID, different []uuid.UUID, err error) {
	c := comparison{source: source, beat: func() {}}
	return c.page(ctx, after)
}

// comparison is a comparison that runs.
type comparison struct {
	cfg    Config
	source Source
	beat   func()
}

// page compares the next page by checksums. It returns how many rows of the owner it has,
// where it ends, and the ids whose checksums differ.
func (c *comparison) page(ctx context.Context, after uuid.UUID) (rows int64, upTo uuid.UUID, different []uuid.UUID, err error) {
	c.beat()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	// The smaller bound of the two limits the rows of both: one side may have many more.
	upTo, err = c.source.Owner.Bound(ctx, after, pageRows)
	if err != nil {
		return 0, after, nil, err
	}
	other, err := c.source.Projection.Bound(ctx, after, pageRows)
	if err != nil {
		return 0, after, nil, err
	}
	if bytes.Compare(other[:], upTo[:]) < 0 {
		upTo = other
	}
	projection, owner, err := c.digests(ctx, after, upTo, false)
	if err != nil {
		return 0, after, nil, err
	}
	rows = owner[upTo].Rows
	if owner[upTo] == projection[upTo] {
		return rows, upTo, nil, nil
	}
	projection, owner, err = c.digests(ctx, after, upTo, true)
	if err != nil {
		return 0, after, nil, err
	}
	for id, digest := range owner {
		if projection[id] != digest {
			different = append(different, id)
		}
	}
	for id := range projection {
		if _, ok := owner[id]; !ok {
			different = append(different, id)
		}
	}
	return rows, upTo, different, nil
}

func (c *comparison) digests(ctx context.Context, after, upTo uuid.UUID, each bool) (projection, owner map[uuid.UUID]Digest, err error) {
	var both [2]map[uuid.UUID]Digest
	for i, side := range []Side{c.source.Projection, c.source.Owner} {
		digests, err := side.Digest(ctx, after, upTo, each)
		if err != nil {
			return nil, nil, err
		}
		both[i] = make(map[uuid.UUID]Digest, len(digests))
		for _, digest := range digests {
			both[i][digest.ID] = digest
		}
	}
	return both[0], both[1], nil
}

// settle looks at ids, and returns those that differ. For entries that may wait for their
// event it looks again, until all have it or Config.Wait is over.
func (c *comparison) settle(ctx context.Context, ids []uuid.UUID) (differences []Difference, pending int64, err error) {
	found, err := c.look(ctx, ids)
	if err != nil {
		return nil, 0, err
	}
	waiting := make(map[uuid.UUID]Seen)
	for id, seen := range found {
		if seen.mayWait() {
			waiting[id] = seen
		} else {
			differences = append(differences, c.difference(id, seen))
		}
	}
	if len(waiting) == 0 {
		return differences, 0, nil
	}
	// Before the wait: an event that is not in the outbox now was published, and has all of
	// the wait to arrive.
	inOutbox, err := c.source.Entries.Pending(ctx, idsOf(waiting))
	if err != nil {
		return nil, 0, err
	}
	for _, part := range []time.Duration{64, 64, 32, 16, 8, 4, 2} { // together one
		if err := c.sleep(ctx, c.cfg.Wait/part); err != nil {
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
	for id, seen := range waiting {
		if inOutbox[id] {
			pending++
		} else {
			differences = append(differences, c.difference(id, seen))
		}
	}
	return differences, pending, nil
}

// lookAgain removes those that have arrived at the version of the first look, whatever has
// come since. It returns those among them that are wrong in another way now.
func (c *comparison) lookAgain(ctx context.Context, waiting map[uuid.UUID]Seen) (wrong []Difference, err error) {
	found, err := c.look(ctx, idsOf(waiting))
	if err != nil {
		return nil, err
	}
	for id, first := range waiting {
		now, differs := found[id]
		if differs && now.mayWait() && now.Version < first.OwnerVersion {
			continue
		}
		delete(waiting, id)
		if differs && !now.mayWait() {
			wrong = append(wrong, c.difference(id, now))
		}
	}
	return wrong, nil
}

// look looks at any number of ids.
func (c *comparison) look(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]Seen, error) {
	found := make(map[uuid.UUID]Seen)
	for some := range slices.Chunk(ids, lookRows) {
		seen, err := c.lookAt(ctx, some)
		if err != nil {
			return nil, err
		}
		maps.Copy(found, seen)
	}
	return found, nil
}

func (c *comparison) lookAt(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]Seen, error) {
	c.beat()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return c.source.Entries.Look(ctx, ids)
}

func (c *comparison) difference(id uuid.UUID, s Seen) Difference {
	return Difference{Type: c.source.Type, ID: id, Kind: s.Kind(), OwnerVersion: s.OwnerVersion, Version: s.Version, Fields: s.Fields}
}

// sleep waits, if d is positive. It returns the error of ctx if that ends first.
func (c *comparison) sleep(ctx context.Context, d time.Duration) error {
	c.beat()
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func idsOf(seen map[uuid.UUID]Seen) []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	return ids
}
