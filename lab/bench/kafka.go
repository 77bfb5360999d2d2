package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/lab/kafka"
	option "example.com/videocatalog/options/kafka"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The sinks that are Kafka, with 12 partitions.
const (
	sinkFake  = "kfake" // in this process, as pubsublocal
	sinkKafka = "kafka" // a real one, if this machine has Java and Maven
)

// kafkas are the addresses of the brokers, by sink.
type kafkas map[string]string

// startKafkas starts the brokers until stop is called.
func startKafkas(ctx context.Context) (_ kafkas, stop func(), err error) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"message.max.bytes": strconv.Itoa(kafka.MaxBatch)}))
	if err != nil {
		return nil, nil, err
	}
	all := kafkas{sinkFake: fake.ListenAddrs()[0]}
	dir, err := os.MkdirTemp("", "bench-kafka-")
	if err != nil {
		return nil, fake.Close, err
	}
	node, err := kafka.New(ctx, dir)
	if err == nil {
		all[sinkKafka] = node.Addr
	} else if errors.Is(err, kafka.ErrMissing) {
		fmt.Fprintln(os.Stderr, "without a real Kafka:", err)
		err = nil
	}
	return all, func() {
		fake.Close()
		if node != nil {
			node.Kill()
		}
		_ = os.RemoveAll(dir)
	}, err
}

// create creates the topic of a turn.
func (k kafkas) create(ctx context.Context, kind, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k[kind]))
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(ctx, 12, 1, nil, topic)
	return err
}

// open returns our sink of a topic, whose events l records when they are acknowledged.
func (k kafkas) open(kind, topic string, l *ledger) (outbox.Broker, func() error, error) {
	settings := option.Settings{Brokers: []string{k[kind]}, SASL: "none"}
	options, err := settings.Options(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	sink := option.NewSink(options, topic, 4*time.Second)
	return seen{sink, l}, func() error { sink.Stop(); return nil }, nil
}

// way returns our sink and our source of a new topic.
func (k kafkas) way(ctx context.Context, kind string) (outbox.Broker, consumer.Source, error) {
	topic := "way-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	settings := option.Settings{Brokers: []string{k[kind]}, SASL: "none"}
	options, err := settings.Options(slog.New(slog.DiscardHandler))
	if err := errors.Join(err, k.create(ctx, kind, topic)); err != nil {
		return nil, nil, err
	}
	return option.NewSink(options, topic, time.Minute), option.NewSource(options, topic, topic+".catalog", 1), nil
}

// seen is a broker whose acknowledged events a ledger records.
type seen struct {
	outbox.Broker
	ledger *ledger
}

func (b seen) Publish(m envelope.Message) outbox.Receipt {
	return seenReceipt{b.Broker.Publish(m), b.ledger, m.Payload}
}

type seenReceipt struct {
	outbox.Receipt
	ledger  *ledger
	payload []byte
}

func (r seenReceipt) Wait(ctx context.Context) error {
	err := r.Receipt.Wait(ctx)
	if err == nil {
		r.ledger.see(r.payload)
	}
	return err
}
