package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/googleapis/gax-go/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"example.com/videocatalog/internal/consumer"
)

const (
	// session is how long a group waits for a member that is silent, or that keeps partitions it must give back. Then other
	// members get them.
	session = 10 * time.Second
	// revokeWait is how long a member that loses partitions in good order waits for the messages in hand.
	revokeWait = time.Second
	// commitInterval is how often the progress is committed. After a crash, the messages of about one interval come again.
	commitInterval = 200 * time.Millisecond
	// commitTimeout limits one commit, and leaveTimeout the client's way to leave the group. At most stopTimeout after the stop both
	// are over: the receiver waits for 2.5 s.
	commitTimeout = time.Second
	leaveTimeout  = 250 * time.Millisecond
	stopTimeout   = 2200 * time.Millisecond
	// pollRecords is how many records are taken before the bytes in hand are counted.
	pollRecords = 100
	// againAfter is the pause before a message that was given back comes again.
	againAfter = 100 * time.Millisecond
)

// Source is the subscription of a consumer group to a topic; it implements consumer.Source.
//
// Each partition belongs to one member of the group. The messages of a key are a chain: one is handled after the
// other. Chains run at the same time, so the messages of a partition end in any order. Only its prefix whose
// messages all have ended is committed. So after a crash at any point, every message that has not ended comes again.
type Source struct {
	topic, group string
	options      []kgo.Opt
	messages     int64 // the most messages in hand
	bytes        int64 // about the most bytes in hand
}

// NewSource makes a Source. All subscriptions of the process share 4,000 messages and 64 MiB in hand, but no share is
// below 200 messages. Besides, the client buffers an eighth of its share for each broker, as it comes: compressed. cluster are the
// options of Settings.Options.
func NewSource(cluster []kgo.Opt, topic, group string, subscriptions int) *Source {
	s := &Source{topic: topic, group: group, messages: int64(max(200, 4000/subscriptions)), bytes: int64(64 << 20 / subscriptions)}
	ahead := int32(max(1<<20, s.bytes/8)) //nolint:gosec // at most 8 MiB
	s.options = append([]kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(session), kgo.RebalanceTimeout(session), kgo.HeartbeatInterval(time.Second),
		kgo.FetchMaxBytes(ahead), kgo.FetchMaxPartitionBytes(min(ahead, 1<<20)), // a larger record comes alone
		kgo.FetchMaxWait(500 * time.Millisecond),
	}, cluster...)
	return s
}

// String implements consumer.Source.
func (s *Source) String() string { return s.group }

// Receive implements consumer.Source. It returns an error if the cluster refuses us, for example because the topic
// may not be read, or if the topic is missing when it begins. While the cluster is unavailable it waits. A message that
// was given back comes again after a pause, as long as this member has its partition; then another member gets it.
func (s *Source) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	received, over := context.WithCancel(ctx)
	defer over()
	m := &member{Source: s, handle: handle, received: received, room: make(chan struct{}, 1), parts: map[part]*progress{}, chains: map[string][]*item{}}
	lives, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	client, err := kgo.NewClient(append(slices.Clip(s.options), kgo.WithContext(lives),
		kgo.OnPartitionsRevoked(m.revoked), kgo.OnPartitionsLost(m.lost))...)
	if err != nil {
		return err
	}
	m.client = client
	// The client waits for a topic that is missing, and does not say so.
	if found, err := kadm.NewClient(client).ListTopics(ctx, s.topic); err == nil && found.Error() != nil {
		client.Close()
		return fmt.Errorf("topic %s: %w", s.topic, found.Error())
	}
	var commits sync.WaitGroup
	commits.Go(m.commitOften)
	err = m.poll()
	over()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	m.calls.Wait()
	commits.Wait()
	// A crash here lets the messages since the last commit come again.
	m.commit(last, nil)
	m.leave(last)
	end() // else Close would wait for a join
	client.CloseAllowingRebalance()
	m.waits.Wait()
	return err
}

// leave tells the group that this member is gone; else the group waits for its session. The client commits and leaves only
// after the join in flight, which may wait for members that are dead. So the group is told directly, and the messages that
// have ended since the join began come again.
func (m *member) leave(last context.Context) {
	first, cancel := context.WithTimeout(last, leaveTimeout)
	defer cancel()
	if m.client.LeaveGroupContext(first) == nil {
		return
	}
	again, cancel := context.WithTimeout(context.WithoutCancel(last), commitTimeout)
	defer cancel()
	request, gone := kmsg.NewPtrLeaveGroupRequest(), kmsg.NewLeaveGroupRequestMember()
	gone.MemberID, _ = m.client.GroupMetadata()
	request.Group, request.MemberID, request.Members = m.group, gone.MemberID, []kmsg.LeaveGroupRequestMember{gone}
	_, _ = request.RequestWith(again, m.client) // if it is lost, the session ends
}

// member is a Source that receives.
type member struct {
	*Source
	client     *kgo.Client
	handle     func(context.Context, consumer.Message) bool
	received   context.Context //nolint:containedctx // ends when nothing more is received
	calls      sync.WaitGroup  // the chains
	waits      sync.WaitGroup  // for messages in hand
	room       chan struct{}   // has a place for a message that has ended
	committing sync.Mutex

	mu     sync.Mutex
	parts  map[part]*progress
	chains map[string][]*item // by key; a chain that is there is running
	count  int64              // of the messages in hand
	size   int64              // of the same
}

type part struct {
	topic     string
	partition int32
}

// progress is an assigned partition; guarded by member.mu.
type progress struct {
	items    []*item            // that have not ended, in the order of the partition
	taken    *kgo.Record        // the last one, without its bytes
	last     *kgo.Record        // the end of the prefix that has ended; nil if it is committed
	received context.Context    //nolint:containedctx // ends when the partition is given back
	over     context.CancelFunc // of received
	gone     bool               // another member has the partition, or gets it: no message begins
	calls    sync.WaitGroup     // of handle
}

// item is a message in hand.
type item struct {
	*progress
	record *kgo.Record
	before *kgo.Record // the one before it in the partition, without its bytes; nil if this is the first
	size   int64
}

// poll hands records to their chains until receiving ends, or the cluster refuses us. While a limit of messages or bytes is
// reached it does not poll. Then the client still sends heartbeats, and buffers at most one response of each broker.
func (m *member) poll() error {
	for m.received.Err() == nil {
		m.mu.Lock()
		free, full := m.messages-m.count, m.count >= m.messages || m.size >= m.bytes
		m.mu.Unlock()
		if full {
			select {
			case <-m.room:
			case <-m.received.Done():
			}
			continue
		}
		fetches := m.client.PollRecords(m.received, int(min(free, pollRecords)))
		for _, e := range fetches.Errors() {
			// Others are about one attempt or one partition, and the client goes on by itself, with the other partitions.
			if isRefused(e.Err) {
				m.client.AllowRebalance()
				return fmt.Errorf("topic %s, group %s: %w", m.topic, m.group, e.Err)
			}
		}
		fetches.EachRecord(m.take)
		m.client.AllowRebalance() // from here on the partitions may go to other members
	}
	return nil
}

// take puts a record at the end of its chain. A record without a key has no order.
func (m *member) take(record *kgo.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := part{record.Topic, record.Partition}
	p := m.parts[of]
	if p == nil {
		p = &progress{}
		p.received, p.over = context.WithCancel(m.received)
		m.parts[of] = p
	}
	i := &item{progress: p, record: record, before: p.taken, size: int64(size(record))}
	p.taken = &kgo.Record{Topic: record.Topic, Partition: record.Partition, LeaderEpoch: record.LeaderEpoch, Offset: record.Offset}
	p.items = append(p.items, i)
	m.count++
	m.size += i.size
	key := string(record.Key)
	if key == "" {
		m.calls.Go(func() { m.end(i, m.deliver(i)) })
		return
	}
	chain, runs := m.chains[key]
	if m.chains[key] = append(chain, i); !runs {
		m.calls.Go(func() { m.run(key) })
	}
}

// run handles the messages of a key one after the other. This also holds if the partition comes back to this member while
// one of them is still handled.
func (m *member) run(key string) {
	for {
		m.mu.Lock()
		chain := m.chains[key]
		if len(chain) == 0 {
			delete(m.chains, key)
			m.mu.Unlock()
			return
		}
		i := chain[0]
		chain[0], m.chains[key] = nil, chain[1:] // the array of the chain does not keep the record
		m.mu.Unlock()
		m.end(i, m.deliver(i))
	}
}

// deliver repeats a message until it is acknowledged, and reports whether it is. It gives up when the partition is given
// back.
func (m *member) deliver(i *item) (ack bool) {
	message := messageOf(i.record)
	for !ack && m.begin(i.progress) {
		ack = m.handle(i.received, message)
		i.calls.Done()
		if !ack {
			_ = gax.Sleep(i.received, againAfter)
		}
	}
	return ack
}

// begin reports whether a message of a partition may be handled.
func (m *member) begin(p *progress) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.gone || p.received.Err() != nil {
		return false
	}
	p.calls.Add(1)
	return true
}

// messageOf returns a record as a message. Its id says where the record is.
func messageOf(r *kgo.Record) consumer.Message {
	attributes := make(map[string]string, len(r.Headers))
	for _, header := range r.Headers {
		if header.Value != nil { // Debezium has null for what an event lacks
			attributes[header.Key] = string(header.Value)
		}
	}
	defect := ""
	switch {
	case len(r.Key) == 0:
		defect = "the record has no key, and so no order"
	case r.Value == nil:
		defect = "the record has no value: an event without content has an empty one"
	}
	return consumer.Message{
		ID: fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset), Key: string(r.Key), Attributes: attributes, Data: r.Value, PublishTime: r.Timestamp, Defect: defect,
	}
}

// end removes a message from those in hand. If it is acknowledged, the prefix of its partition may grow. The prefix never
// passes a message that deliver gave up, and another member gets that message.
func (m *member) end(i *item, ack bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count--
	m.size -= i.size
	if at := slices.Index(i.items, i); ack {
		i.items = slices.Delete(i.items, at, at+1)
		if at == 0 {
			i.last = i.taken
			if len(i.items) > 0 {
				i.last = i.items[0].before
			}
		}
	}
	select {
	case m.room <- struct{}{}:
	default:
	}
}

// commitOften commits the progress until receiving ends.
func (m *member) commitOften() {
	for gax.Sleep(m.received, commitInterval) == nil {
		m.commit(context.WithoutCancel(m.received), nil)
	}
}

// commit commits the prefixes that have grown, of some partitions or, if only is nil, of all. If it fails, the next
// commit tries again: a prefix only grows. The coordinator refuses a member whose session has ended.
func (m *member) commit(ctx context.Context, only map[string][]int32) {
	m.committing.Lock() // so that no older commit follows the one of a partition that is revoked
	defer m.committing.Unlock()
	var records []*kgo.Record
	moved := m.selected(only, func(p *progress) bool {
		if p.last != nil {
			records = append(records, p.last)
		}
		return p.last != nil
	})
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if len(records) == 0 || m.client.CommitRecords(ctx, records...) != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range moved {
		if slices.Contains(records, p.last) {
			p.last = nil // it has not grown meanwhile
		}
	}
}

// selected returns the partitions that a function selects, of some or, if only is nil, of all that are not given back. It may
// change them. The maps of the client are never nil.
func (m *member) selected(only map[string][]int32, selects func(*progress) bool) map[part]*progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[part]*progress)
	for of, p := range m.parts {
		if (only == nil && !p.gone || slices.Contains(only[of.topic], of.partition)) && selects(p) {
			all[of] = p
		}
	}
	return all
}

// revoked gives partitions back. None of their messages begins any more, those in hand have a second, and then it commits
// the progress. A message that takes longer comes again, at the next member, where the inbox finds its effect.
func (m *member) revoked(ctx context.Context, client *kgo.Client, gone map[string][]int32) {
	parts := m.selected(gone, func(p *progress) bool { p.gone = true; return true })
	idle := make(chan struct{})
	m.waits.Go(func() {
		for _, p := range parts {
			p.calls.Wait()
		}
		close(idle)
	})
	select {
	case <-idle:
	case <-time.After(revokeWait):
	}
	m.commit(ctx, gone)
	m.lost(ctx, client, gone)
}

// lost forgets partitions that other members may have already. It commits nothing: that could set back their offsets.
func (m *member) lost(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
	for of, p := range m.selected(gone, func(p *progress) bool { p.gone = true; return true }) {
		p.over()
		m.mu.Lock()
		delete(m.parts, of)
		m.mu.Unlock()
	}
}
