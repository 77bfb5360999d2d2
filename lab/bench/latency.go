package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/store"
	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/proto"
)

const (
	writers    = 8
	steadyRate = 1000 // events per second
)

// arrivals returns the times of a steady load, the same in every run. The gaps are exponential, as between calls of
// independent clients. With equal gaps, a polling loop could be in step with the load.
func arrivals(n, perSecond int) []time.Duration {
	lots := rand.New(rand.NewPCG(5, 6))
	at := make([]time.Duration, n)
	var seconds float64
	for i := range at {
		seconds += lots.ExpFloat64() / float64(perSecond)
		at[i] = time.Duration(seconds * float64(time.Second))
	}
	return at
}

// paced calls write for n events, about perSecond per second, from eight writers. Events of an aggregate come from one
// writer, in order.
func paced(ctx context.Context, n, perSecond int, write func(ctx context.Context, i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, writers)
	at := arrivals(n, perSecond)
	begun := time.Now()
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += writers {
				time.Sleep(time.Until(begun.Add(at[i])))
				errs[w] = write(ctx, i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// steadyLoad is a steady load: events per second, and their sink.
type steadyLoad struct {
	sink            string
	instances, rate int
}

// steadyLoads are the measured loads. The first is measured in every round, and the others in one. Fifty events per
// second are half of the capacity of a loop that waits 10 ms for each event.
var steadyLoads = []steadyLoad{
	{sinkNone, 1, steadyRate}, {sinkNone, 4, steadyRate}, {sinkSlow, 1, 50}, {sinkSlow, 4, 50}, {sinkPubSub, 1, 50}, {sinkPubSub, 4, 50},
}

// latencies measures for each peer the time from the commit of an event until the peer sends it, at a steady rate.
func latencies(ctx context.Context, m *machine, s *sinks, peers map[string]peer, p profile, r *results) error {
	for round := range p.rounds {
		loads := steadyLoads
		if round > 0 {
			loads = loads[:1]
		}
		for _, load := range loads {
			for _, name := range peerNames {
				if err := latencyOf(ctx, m, s, peers[name], name, load, p, r); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	return nil
}

func latencyOf(ctx context.Context, m *machine, s *sinks, p peer, name string, load steadyLoad, prof profile, r *results) error {
	ctx, cancel := context.WithTimeout(ctx, prof.latency+time.Minute)
	defer cancel()
	const aggregates = 1000 // a multiple of writers
	n := int(prof.latency.Seconds() * float64(load.rate))
	warm := n / 2 // the first events do not count: sessions prepare their statements
	w := inTurns(warm+n, aggregates, 500)
	if err := m.backlogOf(ctx, p, uniform(0, 1, 500)); err != nil {
		return err
	}
	l := newLedger(w)
	k, err := s.begin(ctx, load.sink, l)
	if err != nil {
		return err
	}
	at, err := start(ctx, p, k, load.instances)
	if err != nil {
		return err
	}
	time.Sleep(100 * time.Millisecond) // until the machine is idle
	committed := make([]time.Time, w.len())
	write := func(ctx context.Context, i int) error {
		err := pgx.BeginFunc(ctx, p.db(), func(tx pgx.Tx) error { return p.append(ctx, tx, w, i) })
		committed[i] = time.Now()
		p.committed(w, i)
		return err
	}
	err = paced(ctx, warm, load.rate, write)
	// Some peers need statistics for their plans, and those are still of empty tables. Autovacuum would update them
	// within a minute.
	err = errors.Join(err, analyze(ctx, p))
	used, measureErr := m.measure(ctx, func() error {
		if err == nil {
			err = paced(ctx, n, load.rate, func(ctx context.Context, i int) error { return write(ctx, warm+i) })
		}
		if err == nil {
			err = m.settled(ctx, p, l)
		}
		return err
	})
	if err = errors.Join(measureErr, at.stop()); err != nil {
		return fmt.Errorf("%d of %d events: %w", l.distinct.Load(), w.len(), err)
	}
	took := make([]time.Duration, n)
	for i := range took {
		nth := warm + i
		took[i] = max(0, l.sentAt(w.aggregates[nth], w.versions[nth]).Sub(committed[nth]))
	}
	return r.write(fmt.Sprintf("Latency/peer=%s/sink=%s/instances=%d/rate=%d", name, load.sink, load.instances, load.rate), n, append(quantiles("commit-to-sent", took),
		value{"cpu-s/Mevent", used.cpu().Seconds() / float64(n) * 1e6}, value{"WAL-B/event", float64(used.wal) / float64(n)},
		value{"out-of-order", float64(l.disorder.Load())}, value{"duplicates", float64(l.duplicates.Load())})...)
}

func quantiles(what string, took []time.Duration) []value {
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000 }
	return []value{{"p50-" + what + "-ms", at(0.5)}, {"p99-" + what + "-ms", at(0.99)}}
}

// chain measures the whole path of the service, from the commit of a command until the catalog shows it: outbox,
// pubsublocal, projector.
func chain(ctx context.Context, m *machine, p profile, r *results) error {
	for range p.rounds {
		if err := chainOnce(ctx, m, p, r); err != nil {
			return err
		}
	}
	return nil
}

func chainOnce(ctx context.Context, m *machine, p profile, r *results) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.latency+time.Minute)
	defer cancel()
	times := newTimes()
	w, err := m.startWay(ctx, writers+12, times)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx), m)) }()
	topic := outbox.NewTopic(w.client.Publisher(names.VideoTopic.Name), 4*time.Second, 8000)
	defer topic.Stop()
	var publisher *outbox.Publisher
	videos := store.NewVideos(w.pool, func() { publisher.Wake() })
	if publisher, err = outbox.New(pg.NewOutbox(w.pool), timedBroker{topic, times}, outbox.Config{}, discard, noop.Meter{}); err != nil {
		return err
	}
	receiver, err := w.newReceiver(consumer.Config{}, w.source(), times)
	if err != nil {
		return err
	}
	loops, stopLoops := context.WithCancel(ctx)
	defer stopLoops()
	var running sync.WaitGroup
	loopErrs := make([]error, 2)
	running.Go(func() { loopErrs[0] = publisher.Run(loops) })
	running.Go(func() { loopErrs[1] = receiver.Run(loops) })

	// The first second does not count, because sessions prepare their statements.
	_, _, err = steady(ctx, videos, times, steadyRate)
	var ids []uuid.UUID
	var committed []time.Time
	used, measureErr := m.measure(ctx, func() error {
		if err == nil {
			ids, committed, err = steady(ctx, videos, times, int(p.latency.Seconds()*steadyRate))
		}
		return err
	})
	stopLoops()
	running.Wait()
	if err = errors.Join(measureErr, loopErrs[0], loopErrs[1]); err != nil {
		return err
	}
	if all := len(times.visible); len(times.sent) != all || len(times.arrived) != all {
		return fmt.Errorf("%d events were sent, %d are in the broker, %d in the catalog", len(times.sent), len(times.arrived), all)
	}
	n := len(ids)
	since := func(at map[uuid.UUID]time.Time) []time.Duration {
		took := make([]time.Duration, n)
		for i, id := range ids {
			took[i] = max(0, at[id].Sub(committed[i]))
		}
		return took
	}
	return r.write(fmt.Sprintf("Chain/rate=%d", steadyRate), n, slices.Concat(quantiles("commit-to-sent", since(times.sent)),
		quantiles("commit-to-broker", since(times.arrived)), quantiles("commit-to-visible", since(times.visible)),
		[]value{{"cpu-s/Mevent", used.cpu().Seconds() / float64(n) * 1e6}})...)
}

// steady creates n videos at the steady rate, and waits until the catalog has all of them.
func steady(ctx context.Context, videos *store.Videos, times *times, n int) (ids []uuid.UUID, committed []time.Time, err error) {
	ids, committed = make([]uuid.UUID, n), make([]time.Time, n)
	want := times.seen() + n
	err = paced(ctx, n, steadyRate, func(ctx context.Context, i int) error {
		e, err := newVideo()
		if err != nil {
			return err
		}
		ids[i] = e.ID
		_, err = videos.CreateVideo(ctx, uuid.Nil, nil, e)
		committed[i] = time.Now()
		return err
	})
	if err == nil {
		err = times.wait(ctx, want)
	}
	return ids, committed, err
}

func newVideo() (*domain.VideoEvent, error) {
	id, eventID := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	return domain.CreateVideo(id, domain.VideoDetails{Title: "Seven Samurai", Description: description}, domain.Stamp{EventID: eventID, Time: time.Now()})
}

// times records when each event was first sent, accepted by the broker, and shown by the catalog.
type times struct {
	mu                     sync.Mutex
	sent, arrived, visible map[uuid.UUID]time.Time // guarded by mu while the loops run
}

func newTimes() *times {
	return &times{sent: map[uuid.UUID]time.Time{}, arrived: map[uuid.UUID]time.Time{}, visible: map[uuid.UUID]time.Time{}}
}

// note records the first time of an event.
func (t *times) note(first map[uuid.UUID]time.Time, id uuid.UUID, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, again := first[id]; !again {
		first[id] = at
	}
}

// observe records the messages that the broker accepts.
func (t *times) observe(e pubsublocal.Event) {
	now := time.Now()
	if e.Kind != pubsublocal.Published {
		return
	}
	var m pubsubpb.PubsubMessage
	if proto.Unmarshal(e.Message, &m) != nil {
		return // cannot happen: the server has encoded it
	}
	if id, err := uuid.Parse(m.GetAttributes()[envelope.AttrEventID]); err == nil {
		t.note(t.arrived, id, now)
	}
}

func (t *times) seen() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.visible)
}

// wait waits until this many events are visible.
func (t *times) wait(ctx context.Context, want int) error {
	for t.seen() < want {
		if err := gax.Sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d events are visible: %w", t.seen(), want, err)
		}
	}
	return nil
}

type timedBroker struct {
	outbox.Broker
	times *times
}

func (b timedBroker) Publish(m envelope.Message) outbox.Receipt {
	b.times.note(b.times.sent, m.ID, time.Now())
	return b.Broker.Publish(m)
}

type timedCatalog struct {
	catalog *store.Catalog
	times   *times
}

// Project applies events to the catalog, and records when they are visible.
func (c timedCatalog) Project(ctx context.Context, name string, events []domain.VideoEvent) ([]envelope.Outcome, error) {
	outcomes, err := c.catalog.Project(ctx, name, events)
	now := time.Now()
	if err == nil {
		for _, e := range events {
			c.times.note(c.times.visible, e.ID, now)
		}
	}
	return outcomes, err
}
