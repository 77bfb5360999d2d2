package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/firestore"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// SettleClaim implements outbox.Store, in one transaction. The token of each lane is the fence: another relay that has
// taken the lane has changed it. A crash before the commit leaves the events where they are, and they are published
// again after the lease; the attempts of a refused event are not counted then, and never start again from zero.
func (s *Store) SettleClaim(ctx context.Context, settlement outbox.Settlement) (held bool, err error) {
	found, ok := s.claims.Load(settlement.Token)
	if !ok {
		return false, nil // its lease ended long ago
	}
	err = s.client.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		d := deltas{Store: s, tx: tx, s: settlement, events: found.(map[int64]event), held: make(map[int16]bool), now: time.Now()}
		if err := d.read(); err != nil {
			return err
		}
		held = len(d.held) == len(settlement.Spans)
		return d.write()
	})
	if err != nil {
		return false, fmt.Errorf("settle %d lanes: %w", len(settlement.Spans), err)
	}
	s.claims.Delete(settlement.Token)
	return held, nil
}

// deltas are the writes of a settlement.
type deltas struct {
	*Store

	tx     *firestore.Transaction
	s      outbox.Settlement
	events map[int64]event
	held   map[int16]bool
	left   map[envelope.Aggregate]bool // resumed aggregates that still have deferred events
	now    time.Time

	failure error // of the first write that failed
}

// read reads which lanes are held, and which resumed aggregates have more deferred events. In a transaction all reads come first.
func (d *deltas) read() error {
	for _, span := range d.s.Spans {
		snapshot, err := d.tx.Get(d.lane(span.Lane))
		if err != nil {
			return err
		}
		var l lane
		if err := snapshot.DataTo(&l); err != nil {
			return err
		}
		if l.Token == d.s.Token {
			d.held[span.Lane] = true
		}
	}
	d.left = make(map[envelope.Aggregate]bool)
	for _, seq := range d.s.Defer {
		d.left[d.events[seq].aggregate()] = true
	}
	for a, seq := range d.s.Resumed {
		if !d.held[outbox.Lane(a)] || d.left[a] {
			continue
		}
		more, err := d.tx.Documents(d.deferredOf(a).Where("version", ">", d.events[seq].Version).Limit(1)).GetAll()
		if err != nil {
			return err
		}
		d.left[a] = len(more) > 0
	}
	return nil
}

// write writes the results of the events in held lanes, and releases the lanes. After a failed write nothing is committed.
func (d *deltas) write() error {
	for _, seq := range d.s.Published {
		if e := d.events[seq]; d.held[e.Lane] {
			d.do(d.tx.Delete(d.document(pendingEvents, e)))
		}
	}
	for _, seq := range d.s.Defer {
		if e := d.events[seq]; d.held[e.Lane] {
			d.do(d.tx.Delete(d.document(pendingEvents, e)))
			d.do(d.tx.Create(d.document(deferredEvents, e), e))
		}
	}
	d.unblock()
	for _, f := range d.s.Refused {
		if !d.held[outbox.Lane(f.Aggregate)] {
			continue
		}
		b := blocked{Lane: outbox.Lane(f.Aggregate), Type: f.Type, ID: f.ID, Attempts: f.Attempts, Error: f.Error}
		if f.RetryIn > 0 {
			next := d.now.Add(f.RetryIn)
			b.NextRetry = &next
		}
		d.do(d.tx.Set(d.block(f.Aggregate), b))
	}
	for number := range d.held {
		d.do(d.tx.Set(d.lane(number), map[string]any{"token": 0, "until": firestore.ServerTimestamp}))
	}
	return d.failure
}

// unblock deletes the published events of resumed aggregates. An aggregate without further deferred events is no longer
// blocked. One that has more is due now.
func (d *deltas) unblock() {
	for _, seq := range slices.Sorted(maps.Keys(d.events)) {
		e := d.events[seq]
		if last, resumed := d.s.Resumed[e.aggregate()]; resumed && seq <= last && d.held[e.Lane] {
			d.do(d.tx.Delete(d.document(deferredEvents, e)))
		}
	}
	for a := range d.s.Resumed {
		switch {
		case !d.held[outbox.Lane(a)]:
		case d.left[a]:
			d.do(d.tx.Update(d.block(a), []firestore.Update{{Path: "attempts", Value: 0}, {Path: "next_retry", Value: d.now}}))
		default:
			d.do(d.tx.Delete(d.block(a)))
		}
	}
}

// do keeps the first error of a write.
func (d *deltas) do(err error) { d.failure = cmp.Or(d.failure, err) }

func (d *deltas) document(collection string, e event) *firestore.DocumentRef {
	return d.client.Collection(collection).Doc(e.name())
}
