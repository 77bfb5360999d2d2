package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

func TestMain(m *testing.M) {
	if os.Getenv(isMember) != "" {
		runMember()
		return
	}
	pgtest.Main(m)
}

// topic is the topic of the tests, and group its subscription.
const (
	topic = "letter.events"
	group = topic + ".reader"
)

// cluster is a cluster in this process, whose connections a test can cut.
type cluster struct {
	*kfake.Cluster

	mu    sync.Mutex
	conns []net.Conn
}

// newCluster starts a cluster with the topic, unless partitions is 0.
func newCluster(t testing.TB, partitions int32, options ...kfake.Opt) *cluster {
	t.Helper()
	c := new(cluster)
	options = append([]kfake.Opt{kfake.NumBrokers(3), kfake.ListenFn(c.listen), kfake.GroupMinSessionTimeout(100 * time.Millisecond)}, options...)
	var err error
	if c.Cluster, err = kfake.NewCluster(options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if partitions > 0 {
		c.create(t, partitions)
	}
	return c
}

func (c *cluster) create(t testing.TB, partitions int32) {
	t.Helper()
	must(t, c.CreateTopic(topic, partitions, map[string]string{"max.message.bytes": strconv.Itoa(maxBatchBytes)}))
}

func (c *cluster) listen(network, addr string) (net.Listener, error) {
	l, err := net.Listen(network, addr)
	return listener{l, c}, err
}

type listener struct {
	net.Listener

	c *cluster
}

func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	l.c.conns = append(l.c.conns, conn)
	return conn, err
}

// cut closes all connections. Responses on their way are lost.
func (c *cluster) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
	c.conns = nil
}

// options returns the options of a client.
func (c *cluster) options(t testing.TB, more ...kgo.Opt) []kgo.Opt {
	t.Helper()
	options, err := (&Settings{Brokers: c.ListenAddrs(), SASL: saslNone}).Options(slog.New(slog.DiscardHandler))
	must(t, err)
	return append(options, more...)
}

func (c *cluster) client(t testing.TB, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(c.options(t, options...)...)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// alter sets max.message.bytes of a topic.
func (c *cluster) alter(t testing.TB, topic string, maxBytes int) {
	t.Helper()
	value := strconv.Itoa(maxBytes)
	_, err := kadm.NewClient(c.client(t)).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "max.message.bytes", Value: &value}}, topic)
	must(t, err)
}

// records returns what the topic has, by partition and offset.
func (c *cluster) records(t testing.TB) (all []*kgo.Record) {
	t.Helper()
	var want int64
	for _, p := range c.PartitionInfos(topic) {
		want += p.HighWatermark - p.LogStartOffset
	}
	client, err := kgo.NewClient(c.options(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	must(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for int64(len(all)) < want && ctx.Err() == nil {
		all = append(all, client.PollFetches(ctx).Records()...)
	}
	if int64(len(all)) != want {
		t.Fatalf("read %d records, want %d", len(all), want)
	}
	return all
}

// letter returns an event. Letter a has the id a.
func letter(id string, version int, payload ...byte) envelope.Message {
	return envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id, Type: "LetterChanged", Version: int64(version), SchemaVersion: 1,
		Payload: payload, OccurredAt: time.Now(),
	}
}

// letters returns the events a1 b2 of the names "a1 b2".
func letters(names string) (all []envelope.Message) {
	for name := range strings.FieldsSeq(names) {
		version, _ := strconv.Atoi(name[1:])
		all = append(all, letter(name[:1], version, []byte(name)...))
	}
	return all
}

// order records the versions of each letter in the order of their first deliveries.
type order struct {
	mu    sync.Mutex
	last  map[string]int64
	first int // deliveries of versions that are new
	wrong []string
}

// add records a delivery.
func (o *order) add(id string, version int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		o.last = make(map[string]int64)
	}
	if version <= o.last[id] {
		return
	}
	if version != o.last[id]+1 {
		o.wrong = append(o.wrong, fmt.Sprintf("%s: %d after %d", id, version, o.last[id]))
	}
	o.last[id] = version
	o.first++
}

// check fails the test unless all versions of all letters came in order.
func (o *order) check(t testing.TB, want int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first != want || len(o.wrong) > 0 {
		t.Errorf("%d events of %d, out of order %d: %.5q", o.first, want, len(o.wrong), o.wrong)
	}
}

// checkTopic fails the test unless the topic has all versions in order. It returns how many records it has.
func (c *cluster) checkTopic(t testing.TB, want int) int {
	t.Helper()
	var o order
	all := c.records(t)
	for _, r := range all {
		m, err := envelope.Parse(messageOf(r).Attributes, r.Value)
		must(t, err)
		o.add(m.AggregateID, m.Version)
	}
	o.check(t, want)
	return len(all)
}

// anyOf returns one of some values at random.
func anyOf[V any](values ...V) V { return values[rand.IntN(len(values))] }
