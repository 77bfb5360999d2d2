package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"

	"example.com/servicekit/dev"
	"example.com/videocatalog/internal/names"
)

// kafka carries the events over Kafka: a cluster in this process, which speaks the real protocol.
func kafka() dev.Part {
	return dev.Part{
		Flag: "kafka", Help: "carry the events over a Kafka in this process, kept in DIR/kafka; to delete it, give this flag with --fresh",
		Before: startKafka, Start: func(context.Context, *dev.Stack) error { return nil },
	}
}

func startKafka(_ context.Context, s *dev.Stack) error {
	dir := filepath.Join(s.State, "kafka")
	if s.Fresh {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("delete the data of Kafka: %w", err)
		}
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DataDir(dir))
	if err != nil {
		return fmt.Errorf("start Kafka: %w, or start again with --fresh", err)
	}
	s.AtStop(func() error { cluster.Close(); return nil }) // it writes its data
	for _, topic := range names.Topics() {
		if cluster.TopicInfo(topic.Name) != nil {
			continue
		}
		if err := cluster.CreateTopic(topic.Name, 3, map[string]string{"max.message.bytes": "10000000"}); err != nil {
			return fmt.Errorf("create topic %s in Kafka: %w", topic.Name, err)
		}
	}
	brokers := strings.Join(cluster.ListenAddrs(), ",")
	s.Set("BROKER=kafka", "KAFKA_BROKERS="+brokers)
	s.Show("Kafka", brokers)
	return nil
}
