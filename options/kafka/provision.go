package kafka

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/operate"
)

// provision creates the topics of this service that the cluster lacks, and changes none. After a crash run it again.
func (s *Settings) provision(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	var partitions, replicas uint
	o, err := operate.ParseOperation(args, func(flags *flag.FlagSet) {
		flags.UintVar(&partitions, "partitions", 12, "")
		flags.UintVar(&replicas, "replicas", 3, "")
	})
	switch {
	case err != nil:
		return app.UsageError(fmt.Errorf("kafka provision: %w", err))
	case len(o.Args) > 0:
		return app.UsageError(fmt.Errorf("kafka provision: unknown argument %q", o.Args[0]))
	case partitions < 1 || partitions > math.MaxInt16 || replicas < 1 || replicas > math.MaxInt8:
		return app.UsageError(errors.New("kafka provision: --partitions and --replicas must be at least 1"))
	}
	admin, err := s.admin(process)
	if err != nil {
		return err
	}
	defer admin.Close()
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	found, err := admin.ListTopics(ctx, ownTopics()...)
	if err != nil {
		return described(err)
	}
	limit, inSync := strconv.Itoa(maxBatchBytes), strconv.Itoa(int(min(2, replicas))) // an event is on two brokers before it counts as published
	configs := map[string]*string{"max.message.bytes": &limit, "min.insync.replicas": &inSync}
	p := operate.NewPrinter(stdout, o.JSON)
	var errs []error
	for _, topic := range ownTopics() {
		if err := found[topic].Err; err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			errs = append(errs, fmt.Errorf("topic %s: %w", topic, err))
			continue
		}
		result := provisioned{Topic: topic, Partitions: len(found[topic].Partitions)}
		if result.Partitions == 0 && !o.DryRun {
			if _, err := admin.CreateTopic(ctx, int32(partitions), int16(replicas), configs, topic); err != nil {
				errs = append(errs, fmt.Errorf("topic %s: %w", topic, err))
				continue
			}
			result = provisioned{topic, int(partitions), true}
		}
		state := "not changed"
		if result.Created {
			state = "created"
		} else if result.Partitions == 0 {
			state = "missing: would be created"
		}
		p.Row(result, topic, fmt.Sprintf("%d partitions", result.Partitions), state)
	}
	return errors.Join(errors.Join(errs...), p.End())
}

// provisioned is what the cluster has of a topic.
type provisioned struct {
	Topic      string `json:"topic"`
	Partitions int    `json:"partitions"`
	Created    bool   `json:"created"`
}
