package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/reconnect"
	"example.com/videocatalog/internal/store"
)

// way is the path of events: a database of the service, and a broker with its topic and subscription.
type way struct {
	pool   *pgxpool.Pool
	server *pubsublocal.Server
	client *pubsub.Client
}

// startWay creates a way. connections is the maximum size of its pool. t records when events reach the broker. The
// caller closes the way.
func (m *machine) startWay(ctx context.Context, connections int32, t *times) (_ *way, err error) {
	w := &way{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close(context.WithoutCancel(ctx), m))
		}
	}()
	if w.pool, err = m.open(ctx, connections); err != nil {
		return nil, err
	}
	if w.server, err = pubsublocal.Start(pubsublocal.Config{Observer: t.observe}); err != nil {
		return nil, err
	}
	if w.client, err = w.server.Client(ctx, project); err != nil {
		return nil, err
	}
	reconnect.RetrySoon(w.client)
	return w, localtopics.Create(ctx, w.client, localbroker.Resources{})
}

func (w *way) close(ctx context.Context, m *machine) (err error) {
	if w.client != nil {
		err = w.client.Close()
	}
	if w.server != nil {
		err = errors.Join(err, w.server.Close())
	}
	if w.pool != nil {
		err = errors.Join(err, m.drop(ctx, w.pool))
	}
	return err
}

// source returns the subscription of the catalog.
func (w *way) source() consumer.Source {
	return consumer.PubSub(w.client.Subscriber(names.VideoTopic.Subscription("catalog")), 1)
}

func (w *way) newReceiver(cfg consumer.Config, from consumer.Source, times *times) (*consumer.Receiver, error) {
	catalog := timedCatalog{store.NewCatalog(w.pool), times}
	return consumer.New(cfg, consumer.Input{
		Source: from, Consumer: "catalog",
		Handlers: consumer.Handlers{event.AggregateVideo: consumer.Handle(event.DecodeVideo, catalog.Project)},
	}, pg.NewInbox(w.pool), discard, noop.Meter{})
}

// consumes measures how fast the projector empties its subscription, in transactions of up to 100 events and of one.
// The projector receives, decodes, applies and acknowledges. From a Kafka it takes 100.
func consumes(ctx context.Context, m *machine, k kafkas, p profile, r *results) error {
	for range p.rounds {
		for _, size := range []int{100, 1} {
			if err := consume(ctx, m, nil, "", p, size, r); err != nil {
				return fmt.Errorf("batch %d: %w", size, err)
			}
		}
		for kind := range k {
			if err := consume(ctx, m, k, kind, p, 100, r); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
		}
	}
	return nil
}

func consume(ctx context.Context, m *machine, k kafkas, kind string, p profile, size int, r *results) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	times := newTimes()
	w, err := m.startWay(ctx, 4, times)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx), m)) }()
	n := min(20_000, p.maxEvents)
	name, source := fmt.Sprintf("Consume/batch=%d", size), w.source()
	var to outbox.Broker
	if kind == "" {
		to = outbox.NewTopic(w.client.Publisher(names.VideoTopic.Name), time.Minute, n)
	} else if to, source, err = k.way(ctx, kind); err != nil {
		return err
	} else {
		name = "ConsumeFrom/broker=" + kind
	}
	if err := publish(ctx, to, n); err != nil {
		return err
	}
	receiver, err := w.newReceiver(consumer.Config{BatchSize: size}, source, times)
	if err != nil {
		return err
	}
	if err := m.checkpoint(ctx); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var projector sync.WaitGroup
	var failure error
	used, err := m.measure(ctx, func() error {
		projector.Go(func() {
			defer stop() // so that the wait below ends if the projector fails
			failure = receiver.Run(running)
		})
		return times.wait(running, n)
	})
	stop()
	projector.Wait()
	if err = errors.Join(err, failure); err != nil {
		return err
	}
	return r.write(name, n, value{"events/s", float64(n) / used.took.Seconds()}, value{"cpu-s/Mevent", used.cpu().Seconds() / float64(n) * 1e6},
		value{"WAL-B/event", float64(used.wal) / float64(n)})
}

// publish publishes the events of n videos, which then wait in the subscription.
func publish(ctx context.Context, to outbox.Broker, n int) error {
	if stops, ok := to.(interface{ Stop() }); ok {
		defer stops.Stop()
	}
	receipts := make([]outbox.Receipt, n)
	for i := range receipts {
		e, err := newVideo()
		if err != nil {
			return err
		}
		message, err := event.EncodeVideo(e)
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		receipts[i] = to.Publish(message)
	}
	for _, receipt := range receipts {
		if err := receipt.Wait(ctx); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}
