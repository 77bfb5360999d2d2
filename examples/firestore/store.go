package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"cloud.google.com/go/firestore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// The collections.
const (
	pendingEvents  = "outbox"   // events that are not known to be published
	deferredEvents = "deferred" // the events of blocked aggregates, moved from there
	blockedOnes    = "blocked"  // aggregates with an event that the broker refused
	lanes          = "lanes"    // one document for each lane: its lease
)

// maxBatch is the largest outbox.Config.Batch: its settlement fits into one transaction of 500 writes. At worst it moves
// 120 pending events and blocks the letter of each (3 writes), deletes 60 deferred ones and updates the letter of each
// (2 writes), and releases 8 lanes: 360 + 120 + 8 = 488.
const maxBatch = 120

// Store is the outbox in Firestore. It implements outbox.Store, for one publisher.
type Store struct {
	client *firestore.Client

	mu     sync.Mutex // held by the claim under way: two of a process would take the same lanes
	busy   bool       // guarded by mu: the last claim found work
	claims sync.Map   // the events of a claim, by its token, as a map by Seq
}

// NewStore makes the store.
func NewStore(client *firestore.Client) *Store { return &Store{client: client} }

// lane is the document of a lane. Without one the lane is free.
type lane struct {
	Token int64     `firestore:"token"`
	Until time.Time `firestore:"until"` // by the clock of Firestore; the end of the lease, or when it was released

	number int16
	read   *firestore.DocumentSnapshot
}

// blocked is the document of a blocked aggregate.
type blocked struct {
	Lane      int16      `firestore:"lane"`
	Type      string     `firestore:"aggregate_type"`
	ID        string     `firestore:"aggregate_id"`
	Attempts  int        `firestore:"attempts"`
	NextRetry *time.Time `firestore:"next_retry"` // nil: a person must set it
	Error     string     `firestore:"error"`
}

func (b blocked) aggregate() envelope.Aggregate { return envelope.Aggregate{Type: b.Type, ID: b.ID} }

func (s *Store) lane(number int16) *firestore.DocumentRef {
	return s.client.Collection(lanes).Doc(strconv.Itoa(int(number)))
}

func (s *Store) block(a envelope.Aggregate) *firestore.DocumentRef {
	return s.client.Collection(blockedOnes).Doc(a.Type + "_" + a.ID)
}

// ClaimEvents implements outbox.Store. It reads the lanes, then their events, and only then takes the leases, each on the
// condition that the lane's document has not changed since. So no other relay had a lease meanwhile, and the events
// need not be read again. After a crash at any point, the lanes wait for the end of the lease.
func (s *Store) ClaimEvents(ctx context.Context, limits outbox.Limits) (outbox.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil {
		found, err := s.hasWork(ctx)
		if s.busy = found; !found || err != nil {
			return outbox.Claim{}, err
		}
		free, now, err := s.freeLanes(ctx)
		if err != nil {
			return outbox.Claim{}, err
		}
		lost := false
		for group := range slices.Chunk(free, limits.Lanes) {
			work, err := s.read(ctx, group, limits, now)
			if err != nil {
				return outbox.Claim{}, err
			}
			if len(work.lanes) == 0 {
				continue
			}
			claim, err := s.lease(ctx, work, limits, now)
			if err != nil || claim.Token != 0 {
				return claim, err
			}
			lost = true
		}
		if !lost { // other relays have all lanes with work
			s.busy = false
			return outbox.Claim{}, nil
		}
	}
	return outbox.Claim{}, ctx.Err()
}

// hasWork reports whether there may be work. It costs two reads if there is none, and no read in a backlog.
func (s *Store) hasWork(ctx context.Context) (bool, error) {
	if s.busy {
		return true, nil
	}
	for _, query := range []firestore.Query{
		s.client.Collection(pendingEvents).Limit(1),
		s.client.Collection(blockedOnes).Where("next_retry", "<=", time.Now()).Limit(1),
	} {
		if found, err := query.Documents(ctx).GetAll(); err != nil || len(found) > 0 {
			return true, err
		}
	}
	return false, nil
}

// freeLanes returns the lanes without a lease, the least recently served first, and the time of the read by Firestore's clock.
func (s *Store) freeLanes(ctx context.Context) (free []lane, now time.Time, err error) {
	var documents []*firestore.DocumentRef
	for number := range int16(outbox.Lanes) {
		documents = append(documents, s.lane(number))
	}
	read, err := s.client.GetAll(ctx, documents)
	if err != nil {
		return nil, now, fmt.Errorf("read the lanes: %w", err)
	}
	for number, snapshot := range read {
		l := lane{number: int16(number), read: snapshot}
		if snapshot.Exists() {
			if err := snapshot.DataTo(&l); err != nil {
				return nil, now, err
			}
		}
		if now = snapshot.ReadTime; l.Token == 0 || !l.Until.After(now) {
			free = append(free, l)
		}
	}
	slices.SortFunc(free, func(a, b lane) int { return a.Until.Compare(b.Until) })
	return free, now, nil
}

// work has the events of a group of lanes.
type work struct {
	lanes             []lane // those with events
	pending, deferred map[int16][]outbox.Claimed
	events            map[int64]event // by Seq, which numbers the events of one claim
	full, lacks       bool            // there is more work now; some due deferred events may be missing
}

// read reads the oldest pending events of lanes, and the deferred events of aggregates that are due.
func (s *Store) read(ctx context.Context, group []lane, limits outbox.Limits, now time.Time) (w work, err error) {
	w = work{pending: make(map[int16][]outbox.Claimed), deferred: make(map[int16][]outbox.Claimed), events: make(map[int64]event)}
	var numbers []int16
	for _, l := range group {
		numbers = append(numbers, l.number)
	}
	oldest, err := list[event](s.client.Collection(pendingEvents).Where("lane", "in", numbers).OrderBy("committed", firestore.Asc).Limit(limits.Events).Documents(ctx))
	if err != nil {
		return w, fmt.Errorf("read pending events: %w", err)
	}
	all, err := list[blocked](s.client.Collection(blockedOnes).Where("lane", "in", numbers).Documents(ctx))
	if err != nil {
		return w, fmt.Errorf("read blocked aggregates: %w", err)
	}
	isBlocked := make(map[envelope.Aggregate]bool)
	due := all[:0]
	for _, b := range all {
		if isBlocked[b.aggregate()] = true; b.NextRetry != nil && !b.NextRetry.After(now) {
			due = append(due, b)
		}
	}
	slices.SortFunc(due, func(a, b blocked) int { return a.NextRetry.Compare(*b.NextRetry) })
	most := limits.Deferred()
	for _, b := range due {
		if most == 0 {
			break
		}
		n := most
		if b.Attempts > 0 { // only the refused one
			n = 1
		}
		events, err := list[event](s.deferredOf(b.aggregate()).OrderBy("version", firestore.Asc).Limit(n).Documents(ctx))
		if err != nil {
			return w, fmt.Errorf("read deferred events: %w", err)
		}
		most -= len(events)
		for i, e := range events {
			attempts := 0
			if i == 0 {
				attempts = b.Attempts
			}
			if err := w.add(w.deferred, e, outbox.Claimed{Attempts: attempts}); err != nil {
				return w, err
			}
		}
	}
	var bytes int64
	for _, e := range oldest {
		if bytes >= limits.Bytes {
			break
		}
		bytes += int64(len(e.Payload))
		if err := w.add(w.pending, e, outbox.Claimed{Blocked: isBlocked[e.aggregate()]}); err != nil {
			return w, err
		}
	}
	w.lacks = most == 0
	w.full = len(oldest) == limits.Events || bytes >= limits.Bytes || w.lacks
	for _, l := range group {
		if len(w.pending[l.number])+len(w.deferred[l.number]) > 0 {
			w.lanes = append(w.lanes, l)
		}
	}
	return w, nil
}

func (s *Store) deferredOf(a envelope.Aggregate) firestore.Query {
	return s.client.Collection(deferredEvents).Where("aggregate_type", "==", a.Type).Where("aggregate_id", "==", a.ID)
}

// add adds an event to the events of its lane, under the next Seq.
func (w *work) add(to map[int16][]outbox.Claimed, e event, c outbox.Claimed) (err error) {
	c.Seq = int64(len(w.events) + 1)
	if c.Message, err = e.message(); err != nil {
		return fmt.Errorf("event %s: %w", e.name(), err)
	}
	w.events[c.Seq] = e
	to[e.Lane] = append(to[e.Lane], c)
	return nil
}

// lease takes the lanes of work, and returns a claim of those that no other relay has taken meanwhile.
func (s *Store) lease(ctx context.Context, w work, limits outbox.Limits, now time.Time) (claim outbox.Claim, err error) {
	token, taken := 1+rand.Int64N(math.MaxInt64), make([]bool, len(w.lanes))
	group, ctx := errgroup.WithContext(ctx)
	for i, l := range w.lanes {
		group.Go(func() error {
			document, err := s.lane(l.number), error(nil)
			fields := map[string]any{"token": token, "until": now.Add(limits.Lease)}
			if l.read.Exists() {
				_, err = document.Update(ctx, []firestore.Update{{Path: "token", Value: token}, {Path: "until", Value: fields["until"]}}, firestore.LastUpdateTime(l.read.UpdateTime))
			} else {
				_, err = document.Create(ctx, fields)
			}
			code := status.Code(err)
			if taken[i] = err == nil; code == codes.FailedPrecondition || code == codes.AlreadyExists || code == codes.Aborted {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return outbox.Claim{}, fmt.Errorf("lease lanes: %w", err)
	}
	for i, l := range w.lanes {
		if taken[i] {
			claim.Token = token
			claim.Add(l.number, w.deferred[l.number], w.pending[l.number], limits)
		}
	}
	claim.Full = claim.Full || w.full
	for i, e := range claim.Events { // the limit is for all lanes together, but claim.Add compares each lane with it
		claim.Events[i].Behind = e.Behind || w.lacks && e.Blocked
	}
	if claim.Token != 0 {
		s.claims.Store(token, w.events)
		time.AfterFunc(2*limits.Lease, func() { s.claims.Delete(token) }) // no settlement comes later
	}
	return claim, nil
}

// list reads the documents of a query.
func list[T any](documents *firestore.DocumentIterator) (all []T, err error) {
	read, err := documents.GetAll()
	if err != nil {
		return nil, err
	}
	for _, snapshot := range read {
		var one T
		if err := snapshot.DataTo(&one); err != nil {
			return nil, fmt.Errorf("document %s: %w", snapshot.Ref.ID, err)
		}
		all = append(all, one)
	}
	return all, nil
}
