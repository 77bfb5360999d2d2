package pubsublocal

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const deadLetterTopic = "projects/p/topics/dead"

// startDelivering starts a server with a topic, an ordered subscription, and a dead-letter topic.
func startDelivering(t testing.TB, clock *Clock, change ...func(*pubsubpb.Subscription)) (*local, *subscription) {
	t.Helper()
	k := startLocal(t, Config{Clock: clock})
	k.makeTopic(&pubsubpb.Topic{Name: testTopic})
	k.makeTopic(&pubsubpb.Topic{Name: deadLetterTopic})
	cfg := &pubsubpb.Subscription{Name: testSubscription, Topic: testTopic, EnableMessageOrdering: true, AckDeadlineSeconds: 10}
	for _, f := range change {
		f(cfg)
	}
	k.makeSubscription(cfg)
	return k, k.subscriptions.get(testSubscription)
}

func unordered(cfg *pubsubpb.Subscription) { cfg.EnableMessageOrdering = false }
func deadLettering(cfg *pubsubpb.Subscription) {
	cfg.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: deadLetterTopic, MaxDeliveryAttempts: 5}
}

func (k *local) modify(seconds int32, messages ...*pubsubpb.ReceivedMessage) {
	k.t.Helper()
	if _, err := k.ModifyAckDeadline(k.t.Context(), &pubsubpb.ModifyAckDeadlineRequest{
		Subscription: testSubscription, AckIds: ackIDsOf(messages), AckDeadlineSeconds: seconds,
	}); err != nil {
		k.t.Fatal(err)
	}
}

func ackIDsOf(messages []*pubsubpb.ReceivedMessage) (ids []string) {
	for _, m := range messages {
		ids = append(ids, m.GetAckId())
	}
	return ids
}

// If a request has an ack id twice, it counts once.
func TestAckTwiceInOneRequest(t *testing.T) {
	clock := &Clock{}
	k, sub := startDelivering(t, clock)
	k.publish(testTopic, "a", "held")
	k.publish(testTopic, "b", "twice")
	m := k.pull(testSubscription)
	k.ack(testSubscription, m[1], m[1])
	k.ack(testSubscription, m[0])
	if n := sub.backlog.Len(); n > 0 || sub.done != 0 {
		t.Errorf("the backlog has %d deliveries, of which %d count as done, want none", n, sub.done)
	}
	clock.Advance(8 * 24 * time.Hour) // would not return if an ack counted twice
}

// A dead letter is not delivered again when an earlier message of its key fails. [K4]
func TestDeadLetterStaysDead(t *testing.T) {
	k, _ := startDelivering(t, &Clock{}, deadLettering)
	k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/dead", Topic: deadLetterTopic})
	k.publish(testTopic, "key", "1", "2", "3")
	m := k.pull(testSubscription)
	first, second := m[0], m[1]
	for range 4 {
		k.modify(0, second)
		second = k.pull(testSubscription)[0]
	}
	k.modify(0, second)
	same(t, "after the dead letter", []string{"3"}, dataOf(k.pull(testSubscription)))
	k.modify(0, first)
	same(t, "after the nack of the first message", []string{"1", "3"}, dataOf(k.pull(testSubscription)))
	same(t, "dead letters", []string{"2"}, dataOf(k.pull("projects/p/subscriptions/dead")))
}

// If a whole run expires at once, only its first message fails. [I13]
func TestExpiryOfRunCountsOnce(t *testing.T) {
	clock := &Clock{}
	k, _ := startDelivering(t, clock, deadLettering)
	for place := range 5 {
		for key := range 20 {
			k.publish(testTopic, strconv.Itoa(key), strconv.Itoa(place))
		}
	}
	k.modify(30, k.pull(testSubscription)...)
	clock.Advance(31 * time.Second)
	for _, m := range k.pull(testSubscription) {
		want := int32(1)
		if string(m.GetMessage().GetData()) == "0" {
			want = 2
		}
		if got := m.GetDeliveryAttempt(); got != want {
			t.Errorf("delivery_attempt of message %s of key %s = %d, want %d", m.GetMessage().GetData(), m.GetMessage().GetOrderingKey(), got, want)
		}
	}
}

// Keys with new messages all the time do not starve messages without a key.
func TestUnkeyedMessageHasItsTurn(t *testing.T) {
	k, _ := startDelivering(t, &Clock{})
	k.publish(testTopic, "", "unkeyed")
	k.publish(testTopic, "0", "keyed")
	for i := range 10 {
		k.publish(testTopic, strconv.Itoa(i+1), "keyed")
		r := must[*pubsubpb.PullResponse](t)(k.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: testSubscription, MaxMessages: 1}))
		if dataOf(r.GetReceivedMessages())[0] == "unkeyed" {
			return
		}
		k.ack(testSubscription, r.GetReceivedMessages()...)
	}
	t.Error("ten newer messages with keys came, and the one without did not")
}

// A message that is published during a seek is not lost.
func TestPublishWhileSeeking(t *testing.T) {
	k, sub := startDelivering(t, &Clock{})
	var both sync.WaitGroup
	sub.mu.Lock()
	both.Go(func() {
		if _, err := k.Seek(t.Context(), &pubsubpb.SeekRequest{
			Subscription: testSubscription, Target: &pubsubpb.SeekRequest_Time{Time: &timestamppb.Timestamp{Seconds: 1}},
		}); err != nil {
			t.Error(err)
		}
	})
	time.Sleep(20 * time.Millisecond) // the seek waits for the subscription
	both.Go(func() { k.publish(testTopic, "", "meanwhile") })
	time.Sleep(20 * time.Millisecond) // the publish waits for the subscription or the seek
	sub.mu.Unlock()
	both.Wait()
	same(t, "after the seek", []string{"meanwhile"}, dataOf(k.pull(testSubscription)))
}

// held calls read with the lock of the subscription, because a timer may run.
func held(sub *subscription, read func() int) int {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	return read()
}

// Messages that are acknowledged or too old leave nothing behind, with and without a subscriber
// that reads.
func TestNothingIsLeft(t *testing.T) {
	t.Run("keys of a subscription without subscribers", func(t *testing.T) {
		clock := &Clock{}
		k, sub := startDelivering(t, clock)
		for i := range 1000 {
			k.publish(testTopic, strconv.Itoa(i), "x")
		}
		clock.Advance(8 * 24 * time.Hour)
		if n := held(sub, sub.readyKeys.Len); n > 64 {
			t.Errorf("%d keys are remembered after their messages", n)
		}
	})
	t.Run("what a stream does not read", func(t *testing.T) {
		clock := &Clock{}
		k, sub := startDelivering(t, clock, unordered)
		st := &stream{wake: make(chan struct{}, 1), over: make(chan struct{}), ackDeadline: 10 * time.Second}
		if err := sub.open(st); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			k.publish(testTopic, strconv.Itoa(i), "x")
		}
		clock.Advance(10 * time.Minute)
		if n := held(sub, func() int { return len(st.out) }); n > 300 {
			t.Errorf("a stream that does not read has %d deliveries of 100 messages", n)
		}
		sub.shut(st)
		if n := held(sub, func() int { return len(st.out) }); n > 0 {
			t.Errorf("a stream that has ended has %d deliveries", n)
		}
	})
}

// Everything due has happened when Advance returns, even if a timer is set meanwhile. Concurrent
// calls of Advance add up.
func TestAdvanceTakesTurns(t *testing.T) {
	clock := &Clock{}
	start, ran := clock.Now(), false
	second := clock.newTimer(func() { time.Sleep(50 * time.Millisecond); ran = true })
	first := clock.newTimer(func() { second.set(clock.Now()); time.Sleep(20 * time.Millisecond) })
	first.set(start.Add(time.Minute))
	var advancing sync.WaitGroup
	for range 2 {
		advancing.Go(func() { clock.Advance(time.Hour) })
	}
	advancing.Wait()
	if !ran {
		t.Error("Advance returned before a timer that was due had run")
	}
	if got := clock.Now().Sub(start); got < 2*time.Hour {
		t.Errorf("two hours are %s", got)
	}
}

// A subscription retains a limited number of acknowledged messages, the newest.
func TestRetainsTheNewest(t *testing.T) {
	_, sub := startDelivering(t, &Clock{}, func(cfg *pubsubpb.Subscription) { cfg.RetainAckedMessages = true })
	for i := range uint64(maxRetained + 2) {
		sub.retain(&message{id: i})
	}
	if n, oldest := sub.acked.Len(), sub.acked.At(0).id; n != maxRetained || oldest != 2 {
		t.Errorf("it retains %d messages from number %d, want %d from 2", n, oldest, maxRetained)
	}
}

// Close waits for running calls.
func TestCloseWaitsForCalls(t *testing.T) {
	k, sub := startDelivering(t, &Clock{})
	conn := must[*grpc.ClientConn](t)(k.Conn())
	defer conn.Close()
	st, err := pubsubpb.NewSubscriberClient(conn).StreamingPull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&pubsubpb.StreamingPullRequest{Subscription: testSubscription, StreamAckDeadlineSeconds: 10}); err != nil {
		t.Fatal(err)
	}
	for open := false; !open; time.Sleep(time.Millisecond) {
		sub.mu.Lock()
		open = len(sub.streams) > 0
		sub.mu.Unlock()
	}
	sub.mu.Lock() // so that the call cannot end
	k.closed = true
	var closeErr error
	closed := make(chan struct{})
	go func() { defer close(closed); closeErr = k.Close() }()
	select {
	case <-closed:
		t.Error("Close returned while a call was under way")
	case <-time.After(50 * time.Millisecond):
	}
	sub.mu.Unlock()
	if <-closed; closeErr != nil {
		t.Error(closeErr)
	}
}

// A client of a busy server has enough time to connect.
func TestConnectSlowly(t *testing.T) {
	k, _ := startDelivering(t, &Clock{})
	conn := must[*grpc.ClientConn](t)(k.Conn(grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		select {
		case <-time.After(200 * time.Millisecond):
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		case <-ctx.Done():
			return nil, fmt.Errorf("dial: %w", ctx.Err())
		}
	})))
	defer conn.Close()
	if _, err := pubsubpb.NewPublisherClient(conn).GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: testTopic}); err != nil {
		t.Errorf("GetTopic() = %v, want no error", err)
	}
}

// same checks that two values are equal.
func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
