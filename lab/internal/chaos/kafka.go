package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/lab/kafka"
)

// The brokers that a run may have.
const (
	BrokerPubSub = "pubsub"
	BrokerKafka  = "kafka" // a real one, or kfake where Java or Maven is missing
	BrokerFake   = kafka.Role
)

// kafkaSession is longer than the session of a projector in its group.
const kafkaSession = 11 * time.Second

// patience is how long to wait for what takes at most d without Kafka. A group may wait for a member that dies as it joins: until the
// join ends, and then for its session.
func (l *lab) patience(d time.Duration) time.Duration {
	if l.broker.kafka == nil {
		return d
	}
	return d + 2*kafkaSession
}

// startKafka starts Kafka with the topics of the service. The time of a record is when the broker appended it.
func (l *lab) startKafka(ctx context.Context) (*broker, error) {
	b, dir := newBroker(), filepath.Join(l.cfg.Out, "kafka")
	err := os.Mkdir(dir, 0o750)
	if err != nil {
		return nil, err
	}
	if l.cfg.Broker == BrokerKafka {
		if b.kafka, err = kafka.New(ctx, dir); errors.Is(err, kafka.ErrMissing) || err == nil && b.kafka.Process == nil {
			l.say("kfake takes the place of a Kafka that can be killed: %v", err)
			l.cfg.Broker = BrokerFake
		}
	}
	if l.cfg.Broker == BrokerFake {
		b.kafka, err = kafka.NewFake(ctx, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("start Kafka: %w", err)
	}
	b.tap, err = kgo.NewClient(kgo.SeedBrokers(b.kafka.Addr), kgo.ConsumeTopics(names.VideoTopic.Name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }), kgo.MetadataMinAge(100*time.Millisecond), kgo.DialTimeout(time.Second))
	if err != nil {
		return b, fmt.Errorf("open Kafka: %w", err)
	}
	settings := map[string]*string{"max.message.bytes": new(strconv.Itoa(kafka.MaxBatch)), "message.timestamp.type": new("LogAppendTime")}
	for _, topic := range names.Topics() {
		if _, err := kadm.NewClient(b.tap).CreateTopic(ctx, 6, 1, settings, topic.Name); err != nil {
			return b, fmt.Errorf("create topic %s: %w", topic.Name, err)
		}
	}
	return b, nil
}

// listenKafka reads the topic until ctx ends, and what the group of the catalog has committed, which is what it acknowledged.
func (b *broker) listenKafka(ctx context.Context) {
	id := func(partition int32, offset int64) string { return fmt.Sprintf("%d/%d", partition, offset) }
	committed := map[int32]int64{} // the first offset of each partition that is not acknowledged
	admin := kadm.NewClient(b.tap)
	for ctx.Err() == nil {
		poll, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := b.tap.PollFetches(poll)
		cancel()
		b.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			attributes := map[string]string{}
			for _, h := range r.Headers {
				attributes[h.Key] = string(h.Value)
			}
			b.publish(id(r.Partition, r.Offset), r.Timestamp)
			b.sight(id(r.Partition, r.Offset), string(r.Key), attributes, r.Value)
		})
		b.mu.Unlock()
		ask, cancel := context.WithTimeout(ctx, time.Second)
		offsets, err := admin.FetchOffsetsForTopics(ask, names.VideoTopic.Subscription("catalog"), names.VideoTopic.Name)
		ends, err2 := admin.ListEndOffsets(ask, names.VideoTopic.Name)
		cancel()
		if errors.Join(err, err2) != nil {
			continue // the broker is down
		}
		b.mu.Lock()
		b.taken = 0
		ends.Each(func(end kadm.ListedOffset) { b.taken += int(end.Offset) })
		offsets.Each(func(o kadm.OffsetResponse) {
			for ; committed[o.Partition] < o.At; committed[o.Partition]++ {
				message := id(o.Partition, committed[o.Partition])
				if _, heard := b.publications[message]; !heard {
					break // it is read next
				}
				b.acknowledge(message)
			}
		})
		b.mu.Unlock()
	}
}

// kafkaKinds returns the faults of a run with Kafka, from the faults of a run with Pub/Sub. It leaves out the faults that
// refuse, repeat or delay single messages, and the seek while a consumer runs.
func kafkaKinds(all, long []fault) ([]fault, []fault) {
	foreign := func(f fault) bool {
		return f.group == groupBroker || f.kind == "subscription sought" || f.kind == "blocked video requeued"
	}
	all, long = slices.DeleteFunc(all, foreign), slices.DeleteFunc(long, foreign)
	all = append(all, fault{"kafka killed", groupBroker, Outage, killKafka(0, 5*time.Second)}, fault{"kafka frozen", groupBroker, Outage, freezeKafka})
	return all, append(long, fault{"kafka away for 60 s", groupBroker, Outage, killKafka(time.Minute, time.Minute+1)})
}

// killKafka kills the broker, and starts it again on its data after a while.
func killKafka(shortest, longest time.Duration) injection {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		record.MayRepeat = 2 * l.allInHand()
		l.broker.kafka.Kill()
		sleep(ctx, between(r, shortest, longest))
		return l.broker.kafka.Start(context.WithoutCancel(ctx))
	}
}

// freezeKafka stops the broker, for longer than a pass waits for it, and sometimes for longer than a lease.
func freezeKafka(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	record.MayRepeat = 2 * l.allInHand()
	if err := l.broker.kafka.Freeze(); err != nil {
		return err
	}
	sleep(ctx, between(r, publishTimeout, 2*lease))
	return l.broker.kafka.Signal(syscall.SIGCONT)
}
