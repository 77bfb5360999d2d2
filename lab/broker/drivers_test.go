package broker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/reconnect"
	"example.com/videocatalog/lab/internal/child"
	"example.com/videocatalog/lab/kafka"
	ours "example.com/videocatalog/options/kafka"
)

var drivers = map[string]driver{
	"pubsub": {start: startPubSub, connect: connectPubSub},
	"kfake":  {start: startKafka(kafka.NewFake), connect: connectKafka},
	"kafka":  {start: startKafka(kafka.New), connect: connectKafka},
}

// roles are the other processes of the tests.
var roles = map[string]func(args []string) error{
	"pubsub":   servePubSub,
	kafka.Role: kafka.Fake,
	"receiver": func(args []string) error { // takes messages, and holds them until it is killed
		c, err := drivers[args[0]].connect(args[1], args[2])
		if err != nil {
			return err
		}
		var mu sync.Mutex
		return c.source.Receive(context.Background(), func(ctx context.Context, m consumer.Message) bool {
			mu.Lock()
			fmt.Printf("%s %s\n", m.Data, m.ID)
			mu.Unlock()
			<-ctx.Done()
			return false
		})
	},
}

// servePubSub is a process with a Pub/Sub server. It prints its address, and on SIGUSR1 all leases end.
func servePubSub([]string) error {
	var clock pubsublocal.Clock
	s, err := pubsublocal.Start(pubsublocal.Config{Clock: &clock})
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	fmt.Println(s.Addr())
	for range signals {
		clock.Advance(10 * time.Minute)
	}
	return nil
}

func startPubSub(t *testing.T) server {
	process, lines, err := child.Run("pubsub")
	if err != nil || !lines.Scan() {
		t.Fatal("start Pub/Sub: ", err)
	}
	t.Cleanup(func() { process.End(syscall.SIGKILL) })
	client, err := pubSubClient(lines.Text())
	pgtest.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return server{
		Process: process, addr: lines.Text(),
		create: func(ctx context.Context, name string, _ int) error {
			soon := localbroker.Resources{Schemaless: true, RetryMin: time.Millisecond, RetryMax: time.Millisecond}
			return soon.Create(ctx, client, localbroker.Topic{Name: name, Subscriptions: []string{name}})
		},
		refuse: func(m *envelope.Message) { m.Traceparent = strings.Repeat("0", 2000) }, // an attribute has at most 1,024 bytes
		forget: func() error { return process.Signal(syscall.SIGUSR1) },
	}
}

func pubSubClient(addr string) (*pubsub.Client, error) {
	client, err := pubsub.NewClient(context.Background(), "conformance", option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err == nil {
		reconnect.RetrySoon(client)
	}
	return client, err
}

func connectPubSub(addr, name string) (client, error) {
	c, err := pubSubClient(addr)
	if err != nil {
		return client{}, err
	}
	topic := outbox.NewTopic(c.Publisher(name), outbox.Config{}.RequestTimeout(), 1000)
	return client{topic, consumer.PubSub(c.Subscriber(name), 1), func() { topic.Stop(); _ = c.Close() }}, nil
}

// startKafka returns the start of a Kafka, or of the cluster that KAFKA_BROKERS names in place of a real one.
func startKafka(start func(ctx context.Context, dir string) (*kafka.Kafka, error)) func(t *testing.T) server {
	return func(t *testing.T) server {
		k, err := start(t.Context(), t.TempDir())
		if errors.Is(err, kafka.ErrMissing) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(k.Kill)
		client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(k.Addr, ",")...))
		pgtest.Must(t, err)
		t.Cleanup(client.Close)
		kcat := func(ctx context.Context, topic string) (string, error) {
			group := []string{"-q", "-b", k.Addr, "-G", "others", "-X", "auto.offset.reset=earliest", "-c", "1", "-f", "%k %h %s", topic}
			out, err := exec.CommandContext(ctx, "kcat", group...).Output()
			return string(out), err
		}
		if _, err := exec.LookPath("kcat"); err != nil {
			kcat = nil
		}
		return server{
			Process: k.Process, addr: k.Addr, other: kcat,
			create: func(ctx context.Context, name string, limit int) error {
				_, err := kadm.NewClient(client).CreateTopic(ctx, 3, 1, map[string]*string{"max.message.bytes": new(strconv.Itoa(limit))}, name)
				return err
			},
			refuse: func(m *envelope.Message) {
				m.Payload = make([]byte, 200_000)
				_, _ = rand.Read(m.Payload) // a batch is compressed
			},
			forget: func() error { return nil }, // the session of a member ends soon
		}
	}
}

func connectKafka(addr, name string) (client, error) {
	settings := ours.Settings{Brokers: strings.Split(addr, ","), SASL: "none"}
	options, err := settings.Options(slog.New(slog.DiscardHandler))
	if err != nil {
		return client{}, err
	}
	sink := ours.NewSink(options, name, outbox.Config{}.RequestTimeout())
	return client{sink, ours.NewSource(options, name, name, 1), sink.Stop}, nil
}
