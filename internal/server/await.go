package server

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
)

// How often GetCatalogEntry looks for a version: soon after a change in this
// process, but not at every one of many; ever less often for the changes of
// other processes.
const (
	awaitGap     = 5 * time.Millisecond
	awaitPoll    = 20 * time.Millisecond
	awaitPollMax = 250 * time.Millisecond
)

// waits are the calls that wait for a version of an entry. Those that wait for
// the same entry share one reader. They have places, so that they leave room
// for all other calls, and no caller may have them all.
type waits struct {
	places, perCaller int
	running           sync.WaitGroup // the readers

	mu      sync.Mutex
	taken   map[string]int           // guarded by mu: places, by caller
	all     int                      // guarded by mu: places
	readers map[uuid.UUID]*versioned // guarded by mu
}

func newWaits(places int) *waits {
	return &waits{places: max(1, places), perCaller: max(1, places/4), taken: make(map[string]int), readers: make(map[uuid.UUID]*versioned)}
}

// versioned is an entry that somebody waits for.
type versioned struct {
	waiting int           // guarded by waits.mu
	joined  chan struct{} // tells the reader of somebody new, who expects it to look soon
	stop    context.CancelFunc

	// What was read last, guarded by waits.mu; read is closed when there is more.
	entry domain.Entry
	err   error
	read  chan struct{}
}

// enter takes a place for a caller; errTooManyWaits when there is none.
func (w *waits) enter(caller string) (leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all >= w.places || w.taken[caller] >= w.perCaller {
		return nil, errTooManyWaits
	}
	w.all++
	w.taken[caller]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all--
		if w.taken[caller]--; w.taken[caller] == 0 {
			delete(w.taken, caller)
		}
	}, nil
}

// join waits for an entry with those who do already, or makes its reader.
func (w *waits) join(ctx context.Context, s *catalogService, id uuid.UUID) *versioned {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.readers[id]
	if v == nil {
		v = &versioned{joined: make(chan struct{}, 1), read: make(chan struct{})}
		ctx, v.stop = context.WithCancel(context.WithoutCancel(ctx)) // it is not of this call alone
		w.readers[id] = v
		w.running.Go(func() { w.reading(ctx, s, id, v) })
	} else {
		select {
		case v.joined <- struct{}{}:
		default: // somebody has just told
		}
	}
	v.waiting++
	return v
}

// leave ends the reader with the last who waits.
func (w *waits) leave(id uuid.UUID, v *versioned) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v.waiting--; v.waiting == 0 {
		v.stop()
		if w.readers[id] == v {
			delete(w.readers, id)
		}
	}
}

// latest returns what was read last, and what is closed by the next read.
func (w *waits) latest(v *versioned) (entry domain.Entry, next <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return v.entry, v.read, v.err
}

// reading reads an entry until nobody waits for it, or it cannot be read.
func (w *waits) reading(ctx context.Context, s *catalogService, id uuid.UUID, v *versioned) {
	for poll := awaitPoll; ctx.Err() == nil; poll = min(2*poll, awaitPollMax) {
		changed := s.changes.Changed() // before the read, or a change between the two is missed
		started := time.Now()
		if failed := w.readOnce(ctx, s, id, v); failed {
			return
		}
		select {
		case <-changed:
			pause(ctx, awaitGap-time.Since(started))
		case <-v.joined:
			pause(ctx, awaitGap-time.Since(started))
			poll = awaitPoll / 2
		case <-time.After(poll):
		case <-ctx.Done():
		}
	}
}

// readOnce tells all who wait what it has read. Who comes after an error has
// another reader.
func (w *waits) readOnce(ctx context.Context, s *catalogService, id uuid.UUID, v *versioned) (failed bool) {
	reading, cancel := context.WithTimeout(ctx, watchRead)
	defer cancel()
	entry, err := s.lookSafely(reading, id)
	if err != nil && reading.Err() != nil {
		err = &domain.Error{Kind: domain.Unavailable, Message: "the catalog does not answer: call again", Err: err}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v.entry, v.err = entry, err
	close(v.read)
	v.read = make(chan struct{})
	if err != nil && w.readers[id] == v {
		delete(w.readers, id)
	}
	return err != nil
}

// lookSafely is for a goroutine of its own, where a panic would end the process.
func (s *catalogService) lookSafely(ctx context.Context, id uuid.UUID) (entry domain.Entry, err error) {
	defer func() { err = orPanic(err, recover()) }()
	return s.look(ctx, id)
}

// awaitVersion returns an entry that is at a version or a later one.
func (s *catalogService) awaitVersion(ctx context.Context, id uuid.UUID, version int64) (domain.Entry, error) {
	leave, err := s.waits.enter(s.callerOf(ctx))
	if err != nil {
		return domain.Entry{}, err
	}
	defer leave()
	wait := s.maxWait
	if deadline, ok := ctx.Deadline(); ok {
		// Nine tenths of what the caller allows, so that our answer, which says
		// more than the caller's own timeout, still arrives.
		wait = min(wait, time.Until(deadline)*9/10)
	}
	deadline, timeout := time.Now().Add(wait), time.After(wait)
	draining := s.draining
	v := s.waits.join(ctx, s, id)
	defer s.waits.leave(id, v)
	for {
		entry, next, err := s.waits.latest(v)
		if err != nil || entry.Version >= version {
			return entry, err
		}
		select {
		case <-next:
		case <-draining:
			draining = nil // closed for good
			timeout = time.After(min(time.Until(deadline), s.drainWait))
		case <-timeout:
			if draining == nil {
				return domain.Entry{}, errDraining
			}
			return domain.Entry{}, errNotSeen(version, entry.Version)
		case <-ctx.Done():
			return domain.Entry{}, ctx.Err()
		}
	}
}
