// Package kafka publishes to and consumes from a cluster of Apache Kafka, with BROKER=kafka.
//
// A [Sink] sends the events of the outbox to a topic, and a [Source] is the subscription of a consumer group. Topic,
// key, headers and value of a record are the topic, the ordering key, the attributes and the data of a message in
// Pub/Sub, byte for byte. A subscription TOPIC.CONSUMER is the group of the same name.
//
// # What it promises
//
// It keeps the promises of package outbox and package consumer: no event is lost, first deliveries of an aggregate are
// in order, and an event takes effect once. It uses no transactions of Kafka, because the inbox makes them needless.
//
// # What it does not promise
//
//   - When partitions are added, an aggregate may move to another one. Its new events can then come before the last
//     ones in the old partition. Versions keep older state out.
//   - While the leader of a partition is silent, or too few replicas are in sync, all new events of its topic wait,
//     however long that takes: an event that was sent may be in the topic.
//   - It creates no topic by itself: the command provision does.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
)

// name is the name of the option, its value of BROKER, and its subcommand.
const name = "kafka"

// Option returns the option.
func Option() app.Option {
	s := new(Settings)
	return app.Option{
		Name: name, Settings: s, Check: s.check, NewBroker: s.newBroker, Subcommands: map[string]app.Subcommand{name: s.command},
		Help: `  server kafka provision               create the topics that the cluster lacks; change none
         --partitions N                of each; default: 12
         --replicas N                  of each partition; default: 3
  server kafka seek SUBSCRIPTION TIME  apply the events that Kafka has retained since TIME (RFC 3339) once more
`,
	}
}

// check returns the mistakes in the settings.
func (s *Settings) check(run app.Selection) []error {
	if run.Subcommand == name && run.Broker != name {
		return []error{errors.New("BROKER must be kafka for `server kafka`")}
	}
	if run.Broker == name && slices.Contains([]string{"serve", "drain", name}, run.Subcommand) {
		return s.mistakes()
	}
	return nil
}

// command runs `server kafka`.
func (s *Settings) command(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	if len(args) > 0 && args[0] == "provision" {
		return s.provision(ctx, process, args[1:], stdout)
	}
	if len(args) > 0 && args[0] == "seek" {
		return s.seek(ctx, process, args[1:], stdout)
	}
	return app.UsageError(errors.New("kafka: want provision or seek: try `server kafka --help`"))
}

// newBroker returns the broker. It returns an error if the cluster reports a mistake. A cluster that does not respond does
// not prevent the start: the API works, and events wait in the outbox.
func (s *Settings) newBroker(ctx context.Context, process *app.Process) (app.Broker, error) {
	options, err := s.Options(process.Log)
	if err != nil {
		return app.Broker{}, app.UsageError(err)
	}
	if err := checkCluster(ctx, options, ownTopics()...); isDefinite(err) {
		return app.Broker{}, app.UsageError(err)
	} else if err != nil {
		process.Log.WarnContext(ctx, "kafka: the cluster does not respond, its topics are not checked", "err", err)
	}
	var sinks []*Sink
	return app.Broker{
		System: name,
		Topic: func(topic string) outbox.Broker {
			sink := NewSink(options, topic, process.Limits.Outbox.RequestTimeout())
			sinks = append(sinks, sink)
			return sink
		},
		Source: func(id string, all int) consumer.Source { return NewSource(options, topicOf(id), id, all) },
		Stop: func() {
			var stopping sync.WaitGroup
			for _, sink := range sinks {
				stopping.Go(sink.Stop)
			}
			stopping.Wait()
		},
	}, nil
}

// ownTopics returns the topics that this service publishes to.
func ownTopics() (own []string) {
	for _, topic := range names.Topics() {
		if !topic.Foreign {
			own = append(own, topic.Name)
		}
	}
	return own
}

// topicOf returns the topic of a subscription: see names.Topic.
func topicOf(subscription string) string {
	return subscription[:max(0, strings.LastIndex(subscription, "."))]
}

// checkTimeout is how long a start waits for the cluster.
const checkTimeout = 5 * time.Second

// errTopic means that a topic cannot take our events.
var errTopic = errors.New("kafka")

// isDefinite reports whether the cluster has reported a mistake, which a later attempt does not mend.
func isDefinite(err error) bool { return errors.Is(err, errTopic) || isRefused(err) }

// checkCluster returns the mistakes in our settings and topics. Other errors are not definite: the cluster did not respond.
func checkCluster(ctx context.Context, options []kgo.Opt, topics ...string) error {
	admin, err := kadm.NewOptClient(options...)
	if err != nil {
		return err
	}
	defer admin.Close()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found, err := admin.ListTopics(ctx, topics...)
	if err != nil {
		return described(err)
	}
	limits, _ := admin.DescribeTopicConfigs(ctx, topics...) // without the right to read them, they count as large enough
	var errs []error
	for _, topic := range topics {
		switch detail, limit := found[topic], maxBytes(limits, topic); {
		case errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
			errs = append(errs, fmt.Errorf("%w: topic %s does not exist: run `server kafka provision`", errTopic, topic))
		case detail.Err != nil:
			errs = append(errs, fmt.Errorf("topic %s: %w", topic, detail.Err))
		case len(detail.Partitions) == 0:
			errs = append(errs, fmt.Errorf("%w: topic %s has no partitions: delete it, and run `server kafka provision`", errTopic, topic))
		case limit < maxBatchBytes:
			errs = append(errs, fmt.Errorf("%w: topic %s takes messages of %d bytes: set its max.message.bytes to %d, because an event may have that many",
				errTopic, topic, limit, maxBatchBytes))
		}
	}
	return errors.Join(errs...)
}

// maxBytes returns max.message.bytes of a topic.
func maxBytes(limits kadm.ResourceConfigs, topic string) int {
	for _, resource := range limits {
		for _, config := range resource.Configs {
			if n, err := strconv.Atoi(config.MaybeValue()); resource.Name == topic && config.Key == "max.message.bytes" && err == nil {
				return n
			}
		}
	}
	return maxBatchBytes
}

// described adds to an error of the cluster the settings that may be wrong.
func described(err error) error {
	if errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) || errors.Is(err, kerr.IllegalSaslState) {
		return fmt.Errorf("KAFKA_SASL, KAFKA_USER and KAFKA_PASSWORD: the cluster refuses them: %w", err)
	}
	if isRefused(err) {
		return fmt.Errorf("the cluster grants the user too little, see options/kafka/README.md: %w", err)
	}
	if eof := new(kgo.ErrFirstReadEOF); errors.As(err, &eof) {
		return fmt.Errorf("KAFKA_TLS and KAFKA_SASL: %w", err)
	}
	return fmt.Errorf("KAFKA_BROKERS: %w", err)
}

// admin returns a client for commands, which the caller closes.
func (s *Settings) admin(process *app.Process) (*kadm.Client, error) {
	options, err := s.Options(process.Log)
	if err != nil {
		return nil, app.UsageError(err)
	}
	return kadm.NewOptClient(options...)
}
