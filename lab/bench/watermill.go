package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// wmill is watermill-sql with the Forwarder, in the schema of its documentation. It keeps the messages, and stores
// an offset. It publishes one message at a time, from one instance at a time.
type wmill struct {
	base
	batch int // messages per read; 0: the default, 100
}

func (p *wmill) schema() sql.SchemaAdapter {
	return sql.DefaultPostgreSQLSchema{SubscribeBatchSize: p.batch}
}

const forwarderTopic = "forwarder_topic" // the default of the Forwarder

func (p *wmill) prepare(ctx context.Context) error {
	subscriber, err := p.subscriber(sql.BeginnerFromPgx(p.pool))
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(forwarderTopic); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	return errors.Join(subscriber.Close(), ctx.Err())
}

func (p *wmill) subscriber(db sql.Beginner) (*sql.Subscriber, error) {
	return sql.NewSubscriber(db, sql.SubscriberConfig{
		SchemaAdapter: p.schema(), OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval: pollPause, ResendInterval: pollPause, RetryInterval: pollPause,
	}, nil)
}

func (p *wmill) tables() []string { return []string{"watermill_" + forwarderTopic} }

// publish publishes events as a writer does, in a transaction or without one.
func (p *wmill) publish(db sql.ContextExecutor, w workload, from, to int) error {
	publisher, err := sql.NewPublisher(db, sql.PublisherConfig{SchemaAdapter: p.schema()}, nil)
	if err != nil {
		return fmt.Errorf("make publisher: %w", err)
	}
	messages := make([]*message.Message, 0, to-from)
	for i := from; i < to; i++ {
		messages = append(messages, message.NewMessage(watermill.NewUUID(), w.payload(i)))
	}
	return forwarder.NewPublisher(publisher, forwarder.PublisherConfig{}).Publish(strconv.Itoa(0), messages...)
}

func (p *wmill) backlog(_ context.Context, w workload) error {
	const chunk = 500
	for from := 0; from < w.len(); from += chunk {
		if err := p.publish(sql.BeginnerFromPgx(p.pool), w, from, min(from+chunk, w.len())); err != nil {
			return err
		}
	}
	return nil
}

func (p *wmill) append(_ context.Context, tx pgx.Tx, w workload, i int) error {
	return p.publish(sql.TxFromPgx(tx), w, i, i+1)
}

func (p *wmill) committed(workload, int) {}

func (p *wmill) left(ctx context.Context) (int, error) {
	return p.count(ctx, `
		SELECT count(*) FROM watermill_`+forwarderTopic+` m WHERE NOT EXISTS (
			SELECT 1 FROM watermill_offsets_`+forwarderTopic+` o
			WHERE (m.transaction_id, m."offset") <= (o.last_processed_transaction_id, o.offset_acked))`)
}

func (p *wmill) instance(ctx context.Context, k *sink) (instance, error) {
	pool, s, release, err := p.connect(ctx, 3, k)
	if err != nil {
		return instance{}, err
	}
	subscriber, err := p.subscriber(sql.BeginnerFromPgx(pool))
	if err != nil {
		return instance{}, errors.Join(err, release())
	}
	forward, err := forwarder.NewForwarder(subscriber, watermillSink{s}, watermill.NopLogger{}, forwarder.Config{CloseTimeout: time.Second})
	if err != nil {
		return instance{}, errors.Join(fmt.Errorf("make forwarder: %w", err), release())
	}
	return instance{
		run: func(ctx context.Context) error {
			done := make(chan error, 1)
			go func() { done <- forward.Run(context.WithoutCancel(ctx)) }()
			<-ctx.Done()
			return errors.Join(forward.Close(), <-done)
		},
		close: release,
	}, nil
}

// watermillSink is a sink for the Forwarder.
type watermillSink struct{ sender *sender }

func (k watermillSink) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := k.sender.send(m.Context(), m.Payload); err != nil {
			return err
		}
	}
	return nil
}

func (k watermillSink) Close() error { return nil } // the maker of the sender closes it
