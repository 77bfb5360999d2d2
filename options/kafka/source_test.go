package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

// quick are settings with which a group notices a silent member soon.
func quick() []kgo.Opt {
	return []kgo.Opt{kgo.SessionTimeout(time.Second), kgo.RebalanceTimeout(2 * time.Second), kgo.HeartbeatInterval(100 * time.Millisecond), kgo.FetchMaxWait(100 * time.Millisecond)}
}

// reader is a member of the group that records what it is handed.
type reader struct {
	mu     sync.Mutex
	got    []consumer.Message
	handle func(context.Context, consumer.Message) bool // nil: every message is acknowledged
	inHand int
	most   int // the largest inHand
}

func (r *reader) take(ctx context.Context, m consumer.Message) bool {
	r.mu.Lock()
	r.got = append(r.got, m)
	r.inHand++
	r.most = max(r.most, r.inHand)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inHand--
	}()
	return r.handle == nil || r.handle(ctx, m)
}

// names returns the bytes of the messages of some keys, in order.
func (r *reader) names(keys string) (names string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.got {
		if m.Key != "" && strings.Contains(keys, m.Key) {
			names += string(m.Data) + " "
		}
	}
	return strings.TrimSpace(names)
}

// start starts a member. end stops it and returns the error of Receive.
func (r *reader) start(t testing.TB, s *Source) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Receive(ctx, r.take) }()
	end = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { _ = end() })
	return end
}

func (c *cluster) source(t testing.TB, subscriptions int) *Source {
	t.Helper()
	return NewSource(c.options(t, quick()...), topic, group, subscriptions)
}

// committed returns the committed offsets of the partitions.
func (c *cluster) committed() map[int32]int64 {
	all := make(map[int32]int64)
	if info := c.GroupInfo(group); info != nil {
		for partition, commit := range info.Commits[topic] {
			all[partition] = commit.Offset
		}
	}
	return all
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pgtest.Eventually(t, 30*time.Second, what, holds)
}

// A message has its place as its id, and the key, headers, bytes and time of its record. A record without a key, without
// bytes and without headers is handed over, too. Only the prefix of a partition that has ended is committed.
func TestSourceCommitsThePrefix(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	pass(t, c.sink(t), letters("a1 b1 a2 b2"))
	free := make(chan struct{})
	r := &reader{handle: func(_ context.Context, m consumer.Message) bool {
		if m.Key == "a" {
			<-free
		}
		return true
	}}
	end := r.start(t, c.source(t, 1))
	eventually(t, "b2 has come", func() bool { return r.names("b") == "b1 b2" })
	must(t, c.client(t).ProduceSync(t.Context(), &kgo.Record{Topic: topic}).FirstErr())
	eventually(t, "the record without a key has come", func() bool {
		return slices.ContainsFunc(r.messages(), func(m consumer.Message) bool { return m.ID == topic+"/0/4" })
	})
	if m := r.messages()[len(r.messages())-1]; m.Key != "" || m.Data != nil || len(m.Attributes) > 0 || time.Since(m.PublishTime) > time.Hour {
		t.Errorf("message = %+v, want it empty", m)
	}
	if got := c.committed(); len(got) > 0 {
		t.Errorf("committed %v while a1 is in hand, want nothing", got)
	}
	close(free)
	eventually(t, "all is committed", func() bool { return c.committed()[0] == 5 })
	if err := end(); err != nil || r.names("a") != "a1 a2" {
		t.Errorf("Receive() = %v, got %s, want nil and a1 a2", err, r.names("a"))
	}
}

func (r *reader) messages() []consumer.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// A member that loses its session commits nothing more. The message in hand comes again, and not before its first call
// has returned, because both calls are of one key.
func TestSourceLosesItsSession(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	pass(t, c.sink(t), letters("a1 a2"))
	var calls int
	free := make(chan struct{})
	r := &reader{handle: func(context.Context, consumer.Message) bool {
		if calls++; calls == 1 {
			<-free
		}
		return true
	}}
	r.start(t, c.source(t, 1))
	eventually(t, "a1 is in hand", func() bool { return r.names("a") == "a1" })
	first := c.GroupInfo(group).Epoch
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, Err: kerr.UnknownMemberID})
	eventually(t, "the member is back", func() bool { info := c.GroupInfo(group); return info.Epoch > first && info.State == "Stable" })
	again := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Observe: true, Count: -1})
	must(t, again.Wait(t.Context(), 2)) // it has fetched
	if got := r.names("a"); got != "a1" {
		t.Errorf("while the first call goes on, came %s, want a1 only", got)
	}
	close(free)
	eventually(t, "a1 comes again, then a2", func() bool { return r.names("a") == "a1 a1 a2" && c.committed()[0] == 2 })
}

// A member that stops while the group waits for another one leaves at once. Else the group would wait for its session, too.
func TestSourceLeavesDuringAJoin(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	pass(t, c.sink(t), letters("a1"))
	silent := c.client(t, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.BlockRebalanceOnPoll(), kgo.RebalanceTimeout(time.Minute))
	t.Cleanup(silent.AllowRebalance)
	silent.PollFetches(t.Context()) // from here on it sends heartbeats only
	patient := append(quick(), kgo.RebalanceTimeout(time.Minute))
	end := new(reader).start(t, NewSource(c.options(t, patient...), topic, group, 1))
	eventually(t, "the second member joins", func() bool {
		info := c.GroupInfo(group)
		return info.State == "PreparingRebalance" && len(info.Members) == 2
	})
	start := time.Now()
	must(t, end())
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("the stop took %s, want no wait for the join", took)
	}
	eventually(t, "it has left", func() bool { return len(c.GroupInfo(group).Members) == 1 })
}

// A member whose message in hand ends after stopTimeout leaves, too.
func TestSourceLeavesLate(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	pass(t, c.sink(t), letters("a1"))
	late := &reader{handle: func(ctx context.Context, _ consumer.Message) bool {
		<-ctx.Done()
		time.Sleep(stopTimeout)
		return true
	}}
	end := late.start(t, NewSource(c.options(t, kgo.SessionTimeout(time.Minute)), topic, group, 1))
	eventually(t, "a1 is in hand", func() bool { return late.names("a") == "a1" })
	must(t, end())
	eventually(t, "it has left", func() bool { return len(c.GroupInfo(group).Members) == 0 })
}

// While messages are not handled, for example because the database is gone, the member keeps its place in the group, and
// has a bounded number of messages and bytes in hand.
func TestSourceIsBounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	var messages []envelope.Message
	payload := make([]byte, 40_000)
	_, _ = rand.Read(payload) // so that it cannot be compressed
	for key := range 500 {
		messages = append(messages, letter(fmt.Sprint("k", key), 1, payload...))
	}
	s := NewSink(c.options(t), topic, time.Minute) // no response is late on a busy machine
	t.Cleanup(s.Stop)
	must(t, errors.Join(pass(t, s, messages)...))
	free := make(chan struct{})
	r := &reader{handle: func(context.Context, consumer.Message) bool { <-free; return true }}
	patient := append(quick(), kgo.SessionTimeout(3*time.Second))     // a busy machine may be late with a heartbeat
	r.start(t, NewSource(c.options(t, patient...), topic, group, 16)) // 250 messages, 4 MiB
	const most = 4<<20/40_000 + pollRecords
	eventually(t, "the hands are full", func() bool { return len(r.messages()) > 100 })
	beats := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, Observe: true, Count: -1})
	must(t, beats.Wait(t.Context(), 35)) // for longer than the session
	if info := c.GroupInfo(group); info.State != "Stable" || len(info.Members) != 1 || len(r.messages()) > most {
		t.Errorf("group is %s with %d members, in hand %d, want Stable, 1, and at most %d", info.State, len(info.Members), len(r.messages()), most)
	}
	close(free)
	eventually(t, "all messages have come", func() bool { return c.committed()[0] == 500 })
}

// Behind a message that does not end, nothing is kept of those that have ended.
func TestSourceKeepsNoEndedMessage(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	m := &member{received: t.Context(), room: make(chan struct{}, 1), parts: map[part]*progress{}, chains: map[string][]*item{}}
	m.handle = func(_ context.Context, message consumer.Message) bool {
		if message.Key == "a" {
			<-free
		}
		return true
	}
	for i := range 1000 {
		m.take(&kgo.Record{Topic: topic, Key: []byte{byte('a' + min(i, 1))}, Offset: int64(i)})
	}
	eventually(t, "one message is in hand, and kept", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.count == 1 && len(m.parts[part{topic: topic}].items) == 1
	})
	close(free)
	m.calls.Wait()
	if p := m.parts[part{topic: topic}]; len(p.items) > 0 || p.last.Offset != 999 {
		t.Errorf("progress %+v, want all up to 999", p)
	}
}

// Without the right to read, Receive returns the refusal. While the cluster is gone, it waits, and then goes on.
func TestSourceOutlivesTheCluster(t *testing.T) {
	t.Parallel()
	dir := kfake.DataDir(t.TempDir())
	c := newCluster(t, 1, dir)
	denied := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: group, Err: kerr.GroupAuthorizationFailed, Count: -1})
	if err := c.source(t, 1).Receive(t.Context(), new(reader).take); err == nil || !strings.Contains(err.Error(), "GROUP_AUTHORIZATION_FAILED") {
		t.Errorf("Receive() = %v, want the refusal", err)
	}
	denied.Remove()
	s, r := c.sink(t), new(reader)
	pass(t, s, letters("a1"))
	r.start(t, c.source(t, 1))
	eventually(t, "a1 is committed", func() bool { return c.committed()[0] == 1 })
	var ports []int
	for _, addr := range c.ListenAddrs() {
		var port int
		_, _ = fmt.Sscanf(addr, "127.0.0.1:%d", &port)
		ports = append(ports, port)
	}
	c.Close()
	c = newCluster(t, 0, dir, kfake.Ports(ports...))
	eventually(t, "a2 is published", func() bool { return pass(t, s, letters("a2"))[0] == nil })
	eventually(t, "a2 has come", func() bool { return r.names("a") == "a1 a2" })
}

// Partitions that are added while the service runs are written, and read from their beginning.
func TestAddedPartitions(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	notice := kgo.MetadataMaxAge(200 * time.Millisecond)
	s, r := c.sink(t, notice), new(reader)
	r.start(t, NewSource(c.options(t, append(quick(), notice)...), topic, group, 1))
	used := func() (n int) {
		for _, p := range c.PartitionInfos(topic) {
			n += int(min(p.HighWatermark, 1))
		}
		return n
	}
	var sent []string
	for version := 1; used() < 2; version++ { // until the sink has noticed
		names := fmt.Sprintf("a%[1]d b%[1]d c%[1]d d%[1]d", version)
		must(t, errors.Join(pass(t, s, letters(names))...))
		sent = append(sent, strings.Fields(names)...)
		if version == 1 {
			_, err := kadm.NewClient(c.client(t)).UpdatePartitions(t.Context(), 6, topic)
			must(t, err)
		}
	}
	slices.Sort(sent)
	eventually(t, "all messages have come", func() bool {
		got := strings.Fields(r.names("abcd"))
		slices.Sort(got)
		return slices.Equal(sent, slices.Compact(got))
	})
}

// A topic that is gone, or that we may not write, is an outage: nothing is refused, and no topic made. When it was created
// again, events are published to it, and received from its beginning.
func TestTopicGoneIsAnOutage(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	s, r := c.sink(t), new(reader)
	denied := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ClusterAuthorizationFailed, Count: -1})
	if err := pass(t, s, letters("a1"))[0]; err == nil || refused(err) {
		t.Errorf("without the right from the start: %v, want an error that is no refusal", err)
	}
	denied.Remove()
	eventually(t, "a1 is published", func() bool { return pass(t, s, letters("a1"))[0] == nil })
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) { // as a receiver does, with longer pauses
			_ = c.source(t, 1).Receive(ctx, r.take)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	eventually(t, "a1 has come", func() bool { return r.names("a") == "a1" })
	c.alter(t, topic, 10)
	if err := pass(t, s, letters("a2"))[0]; !refused(err) {
		t.Errorf("over a limit that was lowered: %v, want a refusal", err)
	}
	c.alter(t, topic, maxBatchBytes)
	denied = c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.TopicAuthorizationFailed, Count: -1})
	if err := pass(t, s, letters("a2"))[0]; err == nil || refused(err) {
		t.Errorf("without the right: %v, want an error that is no refusal", err)
	}
	denied.Remove()
	must(t, c.DeleteTopic(topic))
	if err := pass(t, s, letters("a2"))[0]; err == nil || refused(err) || c.TopicInfo(topic) != nil {
		t.Errorf("without the topic: %v, want an error that is no refusal, and no new topic", err)
	}
	if err := c.source(t, 1).Receive(t.Context(), r.take); err == nil || !strings.Contains(err.Error(), "UNKNOWN_TOPIC_OR_PARTITION") {
		t.Errorf("Receive() without the topic = %v, want the reason", err)
	}
	c.create(t, 1)
	eventually(t, "a2 is published", func() bool { return pass(t, s, letters("a2"))[0] == nil })
	eventually(t, "a2 has come and is committed", func() bool { return r.names("a") == "a1 a2" && c.committed()[0] == 1 })
}

// A header without a value, which Debezium writes for what an event lacks, is no attribute.
func TestNullHeaderIsNone(t *testing.T) {
	t.Parallel()
	m := messageOf(&kgo.Record{Headers: []kgo.RecordHeader{{Key: envelope.AttrVersion, Value: []byte("1")}, {Key: envelope.AttrCausationID}}})
	if diff := cmp.Diff(map[string]string{envelope.AttrVersion: "1"}, m.Attributes); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}
