package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// shapes has our publisher drain events whose aggregates are few, many, or unequal, and whose payloads are small and
// large.
func shapes(ctx context.Context, m *machine, s *sinks, p peer, prof profile, r *results) error {
	n := min(100_000, prof.maxEvents*2/5)
	type shape struct {
		name, sink string
		make       func() workload
	}
	var all []shape
	for _, kind := range []string{sinkNone, sinkPubSub} {
		for _, aggregates := range []int{1, 10, 1000, 100_000} {
			all = append(all, shape{fmt.Sprintf("Aggregates/sink=%s/aggregates=%d", kind, min(aggregates, n)), kind,
				func() workload { return uniform(n, min(aggregates, n), 500) }})
		}
		all = append(all,
			shape{"Skew/sink=" + kind + "/of=even", kind, func() workload { return uniform(n, 1000, 500) }},
			shape{"Skew/sink=" + kind + "/of=hot", kind, func() workload { return hot(n, 1000, 500) }},
			shape{"Skew/sink=" + kind + "/of=zipf", kind, func() workload { return zipf(n, 1000, 500) }})
	}
	for _, size := range []int{100, 500, 1000, 10_000, 100_000} {
		all = append(all, shape{fmt.Sprintf("Payload/bytes=%d", size), sinkNone,
			func() workload { return uniform(min(n, 100_000_000/size), 1000, size) }})
	}
	for range prof.rounds {
		for _, shape := range all {
			w := shape.make()
			t, err := drain(ctx, m, s, p, cell{sink: shape.sink, instances: 1}, w)
			if err != nil {
				return fmt.Errorf("%s: %w", shape.name, err)
			}
			values := append(t.values(), value{"MB/s", t.rate() * float64(w.size) / 1e6})
			if err := r.write(shape.name, t.events, values...); err != nil {
				return err
			}
		}
	}
	return nil
}

// place is a database of ours with something in it that must not slow anybody down.
type place struct {
	name   string
	peer   *ours
	videos *store.Videos
	kept   int // pending rows that stay, because they are parked
}

// growth measures drain, claim, empty look and insert beside events that were published and are retained, and beside
// events that are parked.
func growth(ctx context.Context, m *machine, s *sinks, p profile, r *results) (err error) {
	var places []place
	defer func() {
		for _, place := range places {
			err = errors.Join(err, m.drop(context.WithoutCancel(ctx), place.peer.pool))
		}
	}()
	for _, retained := range p.retained {
		place, err := newPlace(ctx, m, fmt.Sprintf("retained=%d", retained))
		if err != nil {
			return err
		}
		places = append(places, place)
		if err := place.retain(ctx, retained); err != nil {
			return err
		}
	}
	parked, err := newPlace(ctx, m, fmt.Sprintf("retained=%d/parked=%d", p.retained[0], p.parked))
	if err != nil {
		return err
	}
	places = append(places, parked)
	if err := places[len(places)-1].park(ctx, p.retained[0], p.parked); err != nil {
		return err
	}
	events := min(50_000, p.maxEvents)
	for range p.rounds {
		for i := range places {
			if err := places[i].measure(ctx, m, s, p, events, r); err != nil {
				return fmt.Errorf("%s: %w", places[i].name, err)
			}
		}
	}
	return nil
}

func newPlace(ctx context.Context, m *machine, name string) (place, error) {
	url, err := m.database(ctx)
	if err != nil {
		return place{}, err
	}
	pool, err := db.Open(ctx, url, 10, nil)
	if err != nil {
		return place{}, err
	}
	return place{name: name, peer: &ours{base: base{url: url, pool: pool}}, videos: store.NewVideos(pool, nil)}, nil
}

// retain leaves events that were published.
func (p *place) retain(ctx context.Context, events int) error {
	if err := p.peer.backlog(ctx, uniform(events, 1000, 500)); err != nil {
		return err
	}
	if err := p.peer.exec(ctx, "DELETE FROM video.outbox_pending"); err != nil {
		return err
	}
	return p.vacuum(ctx)
}

// park leaves events of a thousand aggregates that wait for a person.
func (p *place) park(ctx context.Context, retained, events int) error {
	if err := p.retain(ctx, retained); err != nil {
		return err
	}
	if err := p.peer.backlog(ctx, uniform(events, 1000, 500)); err != nil {
		return err
	}
	p.kept = events
	if err := p.peer.exec(ctx, `
		INSERT INTO video.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		SELECT DISTINCT aggregate_type, aggregate_id, lane, 10, 'refused', now() FROM video.outbox_pending;
		UPDATE video.outbox_pending SET lane = -1`); err != nil {
		return err
	}
	return p.vacuum(ctx)
}

func (p *place) vacuum(ctx context.Context) error {
	return p.peer.exec(ctx, "VACUUM (ANALYZE) video.outbox_pending, video.outbox")
}

// beside is ours, except that what is kept is not left over, and tables are not emptied.
type beside struct {
	*ours
	kept int
}

func (b beside) left(ctx context.Context) (int, error) {
	n, err := b.ours.left(ctx)
	return n - b.kept, err
}

func (p *place) measure(ctx context.Context, m *machine, s *sinks, prof profile, events int, r *results) error {
	// Aggregates of their own: those of the parked events are blocked.
	w := uniform(events, 2000, 500)
	for i := range w.aggregates {
		w.aggregates[i] += 1000
	}
	w.perAggregate = append(make([]int, 1000), w.perAggregate...)
	if err := m.checkpoint(ctx); err != nil {
		return err
	}
	if err := p.peer.backlog(ctx, w); err != nil {
		return err
	}
	claim, err := p.claims(ctx)
	if err != nil {
		return err
	}
	t, err := m.empty(ctx, s, beside{p.peer, p.kept}, sinkNone, 1, w)
	if err != nil {
		return err
	}
	empty, err := p.looks(ctx)
	if err != nil {
		return err
	}
	if err := m.checkpoint(ctx); err != nil {
		return err
	}
	inserts, err := p.inserts(ctx, prof)
	if err != nil {
		return err
	}
	return r.write("Growth/"+p.name, events, value{"drain-events/s", t.rate()}, value{"claims/s", 1 / claim.Seconds()},
		value{"empty-looks/s", 1 / empty.Seconds()}, value{"inserts/s", inserts})
}

// claims is how long a claim of 2,000 events takes that is given back.
func (p *place) claims(ctx context.Context) (time.Duration, error) {
	const times = 24 // every lane three times
	var took time.Duration
	for range times {
		begun := time.Now()
		claim, err := p.videos.ClaimEvents(ctx, 2000, 8<<20, time.Minute)
		took += time.Since(begun)
		if err != nil {
			return 0, err
		}
		if len(claim.Events) == 0 {
			return 0, errors.New("a claim found no event")
		}
		if _, err := p.videos.SettleClaim(ctx, event.Settlement{Lane: claim.Lane, Token: claim.Token}); err != nil {
			return 0, err
		}
	}
	return took / times, nil
}

// looks is how long a claim takes that finds nothing.
func (p *place) looks(ctx context.Context) (time.Duration, error) {
	const times = 500
	begun := time.Now()
	for range times {
		claim, err := p.videos.ClaimEvents(ctx, 2000, 8<<20, time.Minute)
		if err != nil {
			return 0, err
		}
		if claim.Token != 0 {
			return 0, errors.New("a claim found something where nothing should be")
		}
	}
	return time.Since(begun) / times, nil
}

// inserts is how many commands a second commit over eight connections. What they wrote is published in no turn.
func (p *place) inserts(ctx context.Context, prof profile) (float64, error) {
	perSecond, err := rate(ctx, writers, max(prof.turn, prof.latency/2), func(ctx context.Context, _ int) error {
		e, err := newVideo()
		if err != nil {
			return err
		}
		_, err = p.videos.CreateVideo(ctx, uuid.Nil, nil, e)
		return err
	})
	if err != nil {
		return 0, err
	}
	return perSecond, errors.Join(p.peer.exec(ctx, "DELETE FROM video.outbox_pending WHERE lane >= 0"), vacuumPending(ctx, p.peer.pool))
}

func vacuumPending(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, "VACUUM video.outbox_pending"); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	return nil
}
