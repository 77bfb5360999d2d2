package server

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/tenant"
	"example.com/videocatalog/internal/transport"
)

// The reasons of errors of a call that waits for a version.
const (
	reasonTooManyWaits   problem.Reason = "TOO_MANY_WAITS"
	reasonVersionNotSeen problem.Reason = "VERSION_NOT_SEEN"
)

// errTooManyWaits rejects a call that would wait for a version when too many
// calls already wait, of its caller or in total.
var errTooManyWaits = problem.Errorf(problem.Exhausted, "too many calls wait for a min_version: call again without it, or later").Because(reasonTooManyWaits)

// late: what the caller waits for did not happen in time.
const late = problem.Kind(codes.DeadlineExceeded)

// errNotSeen reports that the version did not arrive within the wait.
func errNotSeen(want, seen int64) error {
	return problem.Errorf(late, "the catalog has seen version %d of the video, not yet version %d: call again", seen, want).Because(reasonVersionNotSeen)
}

// GetCatalogEntry reads an entry repeatedly while it waits for a version. A
// change in this process triggers a read, at most one per awaitGap. To see
// changes of other processes it also polls, at intervals that double from
// awaitPoll to awaitPollMax.
const (
	awaitGap     = 5 * time.Millisecond
	awaitPoll    = 20 * time.Millisecond
	awaitPollMax = 250 * time.Millisecond
)

// waits has the calls that wait for a version of an entry. Calls that wait for
// the same entry share one reader. The number of waiting calls is limited, in
// total and per caller, so that other calls have room.
type waits struct {
	places, perCaller int
	running           sync.WaitGroup // readers that have not returned

	mu      sync.Mutex
	taken   map[string]int           // waiting calls by caller; guarded by mu
	all     int                      // waiting calls; guarded by mu
	readers map[uuid.UUID]*versioned // by their key; guarded by mu
}

func newWaits(places int) *waits {
	return &waits{places: max(1, places), perCaller: max(1, places/4), taken: make(map[string]int), readers: make(map[uuid.UUID]*versioned)}
}

// versioned is an entry that one or more calls wait for.
type versioned struct {
	key     uuid.UUID     // the id of the entry, as its tenant sees it
	waiting int           // calls; guarded by waits.mu
	joined  chan struct{} // makes the reader read soon, for a call that has just joined
	stop    context.CancelFunc

	// Result of the last read, guarded by waits.mu. The next read closes the
	// channel read and replaces it.
	entry domain.Entry
	err   error
	read  chan struct{}
}

// enter takes a place for a caller, which leave frees. It returns
// errTooManyWaits if none is free.
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

// join adds a call that waits for an entry. The first call for an entry starts
// its reader.
func (w *waits) join(ctx context.Context, s *catalogService, id uuid.UUID) *versioned {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := tenant.Key(ctx, id)
	v := w.readers[key]
	if v == nil {
		v = &versioned{key: key, joined: make(chan struct{}, 1), read: make(chan struct{})}
		ctx, v.stop = context.WithCancel(context.WithoutCancel(ctx)) // the reader may outlive this call
		w.readers[key] = v
		w.running.Go(func() { w.reading(ctx, s, id, v) })
	} else {
		select {
		case v.joined <- struct{}{}:
		default: // the reader already has a signal
		}
	}
	v.waiting++
	return v
}

// leave removes a call that waits; the last one stops the reader.
func (w *waits) leave(v *versioned) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v.waiting--; v.waiting == 0 {
		v.stop()
		if w.readers[v.key] == v {
			delete(w.readers, v.key)
		}
	}
}

// latest returns the result of the last read, and a channel that the next read
// closes.
func (w *waits) latest(v *versioned) (entry domain.Entry, next <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return v.entry, v.read, v.err
}

// reading reads an entry until no call waits for it, or until a read fails.
func (w *waits) reading(ctx context.Context, s *catalogService, id uuid.UUID, v *versioned) {
	for poll := awaitPoll; ctx.Err() == nil; poll = min(2*poll, awaitPollMax) {
		changed := s.changes.Changed() // before the read, so that no change is missed
		started := time.Now()
		if failed := w.readOnce(ctx, s, id, v); failed {
			return
		}
		select {
		case <-changed:
			_ = gax.Sleep(ctx, awaitGap-time.Since(started))
		case <-v.joined:
			_ = gax.Sleep(ctx, awaitGap-time.Since(started))
			poll = awaitPoll / 2
		case <-time.After(poll):
		case <-ctx.Done():
		}
	}
}

// readOnce reads the entry and passes the result to all waiting calls. After an
// error the next call to join starts a new reader.
func (w *waits) readOnce(ctx context.Context, s *catalogService, id uuid.UUID, v *versioned) (failed bool) {
	reading, cancel := context.WithTimeout(ctx, watchRead)
	defer cancel()
	entry, err := s.lookSafely(reading, id)
	if err != nil && reading.Err() != nil {
		err = &problem.Error{Kind: problem.Unavailable, Message: "the catalog did not respond in time: call again", Err: err}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v.entry, v.err = entry, err
	close(v.read)
	v.read = make(chan struct{})
	if err != nil && w.readers[v.key] == v {
		delete(w.readers, v.key)
	}
	return err != nil
}

// lookSafely calls look and returns a panic as an error. In a goroutine without
// a guard the panic would end the process.
func (s *catalogService) lookSafely(ctx context.Context, id uuid.UUID) (entry domain.Entry, err error) {
	defer func() { err = orPanic(err, recover()) }()
	return s.look(ctx, id)
}

// awaitVersion waits until an entry has at least the version, and returns it.
// It returns errNotSeen if that takes longer than MaxWait or nine tenths of the
// caller's time. It returns transport.ErrDraining if the server stops, and
// errTooManyWaits if too many calls already wait.
func (s *catalogService) awaitVersion(ctx context.Context, id uuid.UUID, version int64) (domain.Entry, error) {
	leave, err := s.waits.enter(s.callerOf(ctx))
	if err != nil {
		return domain.Entry{}, err
	}
	defer leave()
	wait := s.cfg.MaxWait
	if deadline, ok := ctx.Deadline(); ok {
		// Use nine tenths of the caller's time, so that our error, which says
		// more than a timeout, arrives before the deadline.
		wait = min(wait, time.Until(deadline)*9/10)
	}
	deadline, timeout := time.Now().Add(wait), time.After(wait)
	draining, stopping := s.draining(ctx), false
	v := s.waits.join(ctx, s, id)
	defer s.waits.leave(v)
	for {
		entry, next, err := s.waits.latest(v)
		if err != nil || entry.Version >= version {
			return entry, err
		}
		select {
		case <-next:
		case <-draining:
			draining, stopping = nil, true // closed: do not select it again
			timeout = time.After(min(time.Until(deadline), s.cfg.DrainWait))
		case <-timeout:
			if stopping {
				return domain.Entry{}, transport.ErrDraining
			}
			return domain.Entry{}, errNotSeen(version, entry.Version)
		case <-ctx.Done():
			return domain.Entry{}, ctx.Err()
		}
	}
}

// orPanic returns err, or an error with the stack if panicked is not nil.
func orPanic(err error, panicked any) error {
	if panicked == nil {
		return err
	}
	return fmt.Errorf("panic: %v\n%s", panicked, debug.Stack())
}
