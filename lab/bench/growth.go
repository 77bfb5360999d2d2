package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"github.com/google/uuid"
)

// shapes measures drains of our publisher for few, many and unequal aggregates, and for small and large payloads.
func shapes(ctx context.Context, m *machine, s *sinks, p peer, prof profile, r *results) error {
	n := min(100_000, prof.maxEvents)
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
	for range prof.grown {
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

// place is a database of ours with content that must not slow down the service.
type place struct {
	name   string
	peer   *ours
	events *store.Outbox
	videos *store.Videos
	newest uuid.UUID // id of the newest event that is kept over turns
}

// growth measures drains, claims, empty claims and inserts in databases with retained events, and with parked events.
func growth(ctx context.Context, m *machine, s *sinks, p profile, r *results) (err error) {
	var places []*place
	defer func() {
		for _, place := range places {
			err = errors.Join(err, m.drop(context.WithoutCancel(ctx), place.peer.pool))
		}
	}()
	retain := func(name string, retained int) error {
		place, err := newPlace(ctx, m, name)
		if err != nil {
			return err
		}
		places = append(places, place)
		return place.retain(ctx, retained)
	}
	for i, retained := range p.retained {
		name := fmt.Sprintf("retained=%d", retained)
		if err := retain(name, retained); err != nil {
			return err
		}
		if i == 0 { // a second place with the same content shows the accuracy
			if err := retain(name+"/control", retained); err != nil {
				return err
			}
		}
	}
	parked, err := newPlace(ctx, m, fmt.Sprintf("retained=%d/parked=%d", p.retained[0], p.parked))
	if err != nil {
		return err
	}
	places = append(places, parked)
	if err := parked.park(ctx, p.retained[0], p.parked); err != nil {
		return err
	}
	for range p.grown {
		if err := grown(ctx, m, s, places, p, r); err != nil {
			return err
		}
	}
	return nil
}

// grown runs one round of growth. Every place has many short turns. With one long turn per place, other load on the
// machine would cause differences.
func grown(ctx context.Context, m *machine, s *sinks, places []*place, prof profile, r *results) error {
	// A turn of claims, empty or not, takes less than 0.1 seconds, and one of inserts 0.25 seconds. Claims vary most.
	const few, many, most = 9, 36, 144
	err := byTurns(r, places, few, "drain-events/s", func(p *place) (float64, error) { return p.drain(ctx, m, s, min(drained, prof.maxEvents)) })
	if err != nil {
		return err
	}
	for _, p := range places {
		if err := p.peer.backlog(ctx, others(min(claimed, prof.maxEvents))); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if err := byTurns(r, places, most, "claims/s", func(p *place) (float64, error) { return p.claims(ctx) }); err != nil {
		return err
	}
	for _, p := range places {
		if err := p.clear(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if err := byTurns(r, places, many, "empty-looks/s", func(p *place) (float64, error) { return p.looks(ctx) }); err != nil {
		return err
	}
	if err := m.checkpoint(ctx); err != nil {
		return err
	}
	return byTurns(r, places, many, "inserts/s", func(p *place) (float64, error) { return p.inserts(ctx, prof.latency/8) })
}

// byTurns measures a rate in every place, turn by turn. The order is random in all turns but the first, because the
// disk writes of one turn are done during the next. No place has two turns in a row, or it would find its rows in the
// cache of the CPU.
func byTurns(r *results, places []*place, turns int, unit string, measure func(*place) (float64, error)) error {
	order := slices.Clone(places)
	for range turns {
		for _, p := range order {
			rate, err := measure(p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			if err := r.write("Growth/"+p.name, 1, value{unit, rate}); err != nil {
				return err
			}
		}
		last := order[len(order)-1]
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		if order[0] == last {
			order[0], order[1] = order[1], order[0]
		}
	}
	return nil
}

func newPlace(ctx context.Context, m *machine, name string) (*place, error) {
	url, err := m.database(ctx)
	if err != nil {
		return nil, err
	}
	pool, err := db.Open(ctx, url, 10, nil)
	if err != nil {
		return nil, err
	}
	return &place{name: name, peer: &ours{base: base{url: url, pool: pool}}, events: store.NewOutbox(pool), videos: store.NewVideos(pool, nil)}, nil
}

// retain adds events that were published.
func (p *place) retain(ctx context.Context, events int) error {
	if err := p.peer.published(ctx, uniform(events, 1000, 500)); err != nil {
		return err
	}
	return p.kept(ctx)
}

// park adds parked events of a thousand aggregates.
func (p *place) park(ctx context.Context, retained, events int) error {
	if err := p.retain(ctx, retained); err != nil {
		return err
	}
	if err := p.peer.backlog(ctx, uniform(events, 1000, 500)); err != nil {
		return err
	}
	if err := p.peer.exec(ctx, `
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		SELECT DISTINCT aggregate_type, aggregate_id, lane, 10, 'refused', now() FROM video_catalog.outbox_pending;
		WITH gone AS (DELETE FROM video_catalog.outbox_pending RETURNING *) INSERT INTO video_catalog.outbox_deferred SELECT * FROM gone`); err != nil {
		return err
	}
	return p.kept(ctx)
}

// kept records the newest event, and vacuums.
func (p *place) kept(ctx context.Context) error {
	if err := p.peer.db().QueryRow(ctx, "SELECT id FROM video_catalog.outbox ORDER BY id DESC LIMIT 1").Scan(&p.newest); err != nil {
		return fmt.Errorf("newest event: %w", err)
	}
	return p.peer.exec(ctx, "VACUUM (ANALYZE) video_catalog.outbox_pending, video_catalog.outbox_deferred, video_catalog.outbox")
}

// clear deletes all events that are newer than the event that kept recorded.
func (p *place) clear(ctx context.Context) error {
	if _, err := p.peer.db().Exec(ctx, "DELETE FROM video_catalog.outbox WHERE id > $1", p.newest); err != nil {
		return fmt.Errorf("clear the outbox: %w", err)
	}
	return errors.Join(p.peer.exec(ctx, "DELETE FROM video_catalog.outbox_pending"),
		p.peer.exec(ctx, "VACUUM video_catalog.outbox_pending, video_catalog.outbox"))
}

// others returns events of aggregates that are not parked.
func others(events int) workload {
	w := uniform(events, 2000, 500)
	for i := range w.aggregates {
		w.aggregates[i] += 1000
	}
	w.perAggregate = append(make([]int, 1000), w.perAggregate...)
	return w
}

// drained is the number of events in a turn, which takes about 0.7 seconds.
const drained = 150_000

// drain returns the drained events per second.
func (p *place) drain(ctx context.Context, m *machine, s *sinks, events int) (float64, error) {
	w := others(events)
	if err := m.checkpoint(ctx); err != nil {
		return 0, err
	}
	if err := p.peer.backlog(ctx, w); err != nil {
		return 0, err
	}
	t, err := m.empty(ctx, s, p.peer, sinkNone, 1, w)
	if err != nil {
		return 0, err
	}
	return t.rate(), p.clear(ctx)
}

// claimed is the number of events for claims. With so many, each lane has more events than a claim takes.
const claimed = 50_000

// claims returns the claims of 2,000 events per second. The events are not published, and their lanes are released.
func (p *place) claims(ctx context.Context) (float64, error) {
	const times = 8 // each lane once
	var took time.Duration
	for range times {
		begun := time.Now()
		claim, err := p.events.ClaimEvents(ctx, outbox.AnyLane, 2000, 8<<20, time.Minute)
		took += time.Since(begun)
		if err != nil {
			return 0, err
		}
		if len(claim.Events) == 0 {
			return 0, errors.New("a claim found no event")
		}
		if _, err := p.events.SettleClaim(ctx, outbox.Settlement{Lane: claim.Lane, Token: claim.Token}); err != nil {
			return 0, err
		}
	}
	return times / took.Seconds(), nil
}

// looks returns the claims per second if there is no event.
func (p *place) looks(ctx context.Context) (float64, error) {
	const times = 200
	begun := time.Now()
	for range times {
		claim, err := p.events.ClaimEvents(ctx, outbox.AnyLane, 2000, 8<<20, time.Minute)
		if err != nil {
			return 0, err
		}
		if claim.Token != 0 {
			return 0, errors.New("a claim found something where nothing should be")
		}
	}
	return times / time.Since(begun).Seconds(), nil
}

// inserts returns the commands per second over eight connections. Their events are published in no turn.
func (p *place) inserts(ctx context.Context, turn time.Duration) (float64, error) {
	perSecond, err := rate(ctx, writers, turn, func(ctx context.Context, _ int) error {
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
	return perSecond, p.clear(ctx)
}
