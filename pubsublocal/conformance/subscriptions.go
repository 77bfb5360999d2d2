package conformance

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
)

var subscriptions = []Case{
	{ID: "D1", Sentence: "A subscription of name and topic alone reads back with all defaults.", Run: subscriptionDefaults},
	{ID: "D2", Sentence: "The ack deadline is 10 to 600 seconds, or 0 for 10.", Run: ackDeadlines},
	{ID: "D3", Sentence: "With exactly-once delivery the default ack deadline is 60 seconds.", Run: exactlyOnceDeadline},
	{ID: "D4", Sentence: "A subscription keeps messages for 10 minutes to 31 days.", Run: subscriptionRetentionLimits},
	{ID: "D5", Sentence: "A subscription lives for at least a day without use.", Run: shortestLife},
	{ID: "D6", Sentence: "A subscription does not live shorter than it keeps messages.", Run: lifeAndRetention},
	{ID: "D7", Sentence: "An expiration policy without a time means never.", Clock: true, Run: neverExpires},
	{ID: "D8", Sentence: "An unused subscription is deleted; streams and calls are use.", Clock: true, Run: unusedSubscription},
	{ID: "D9", Sentence: "Retry delays are 0 to 600 seconds, by default 10 and 600, the minimum not above the maximum.", Run: retryLimits},
	{ID: "D10", Sentence: "Without retry policy a failed message comes again at once.", Clock: true, Run: withoutRetryPolicy},
	{ID: "D11", Sentence: "With one the delay doubles with each failure up to the maximum.", Clock: true, Run: retryDelays},
	{ID: "D12", Sentence: "Only the failed message waits, and on an ordered subscription what follows with its key.", Clock: true,
		Run: retryDelayOfOne},
	{ID: "D13", Sentence: "Acknowledged messages are kept on demand, as long as the others.", Clock: true, Run: ackedRetained},
	{ID: "D14", Sentence: "Messages past the retention are dropped, outstanding ones too.", Clock: true, Run: unackedDropped},
	{ID: "D15", Sentence: "A detached subscription has no messages, no streams and no pulls.", Run: detached},
	{ID: "D16", Sentence: "A detached subscription can be read and deleted, and not attached again.", Run: detachedForGood},
	{ID: "D17", Sentence: "A subscription has one way of delivery at most.", Run: oneWayOfDelivery},
	{ID: "D18", Sentence: "Exactly-once delivery is for pulling only.", Run: exactlyOncePulls},
	{ID: "D19", Sentence: "Exactly-once delivery can be switched, and open streams are told.", Run: switchExactlyOnce},
}

// delaying sets the retry policy of a subscription.
func delaying(shortest, longest time.Duration) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) {
		s.RetryPolicy = &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(shortest), MaximumBackoff: durationpb.New(longest)}
	}
}

// living lets a subscription expire after so long without use.
func living(ttl time.Duration) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) {
		s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(ttl)}
	}
}

// tryCreate creates a subscription, maybe in vain. Without an error it answers what Get tells about it.
func tryCreate(t *testing.T, e *Env, topic string, change ...func(*pubsubpb.Subscription)) (*pubsubpb.Subscription, error) {
	t.Helper()
	body := &pubsubpb.Subscription{Name: e.Name("subscriptions"), Topic: topic}
	for _, f := range change {
		f(body)
	}
	created, err := e.Subs.CreateSubscription(t.Context(), body, singleTry)
	if err != nil {
		_, missing := e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: body.GetName()}, singleTry)
		WantCode(t, missing, codes.NotFound)
		return nil, err
	}
	got := subscriptionNow(t, e, body.GetName())
	if diff := cmp.Diff(created, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetSubscription differs from the answer of CreateSubscription (-create +get):\n%s", diff)
	}
	return got, nil
}

// tryBoth creates a subscription with a change, and makes the change to an existing one by an update of these
// paths. Both end with the same code, or look the same; check looks at them.
func tryBoth(
	t *testing.T, e *Env, topic string, change func(*pubsubpb.Subscription), want codes.Code,
	check func(*testing.T, *pubsubpb.Subscription), paths ...string,
) {
	t.Helper()
	t.Run("create", func(t *testing.T) {
		got, err := tryCreate(t, e, topic, change)
		WantCode(t, err, want)
		if err == nil {
			check(t, got)
		}
	})
	t.Run("update", func(t *testing.T) {
		name := e.Subscription(t, topic)
		before := subscriptionNow(t, e, name)
		body := &pubsubpb.Subscription{Name: name}
		change(body)
		_, err := subscriptionUpdate(t, e, body, paths...)
		WantCode(t, err, want)
		got := subscriptionNow(t, e, name)
		if err == nil {
			check(t, got)
		} else if diff := cmp.Diff(before, got, protocmp.Transform()); diff != "" {
			t.Errorf("refused, but changed (-before +after):\n%s", diff)
		}
	})
}

func subscriptionDefaults(t *testing.T, e *Env) {
	topic := e.Topic(t)
	want := &pubsubpb.Subscription{
		Topic:                    topic,
		AckDeadlineSeconds:       10,
		MessageRetentionDuration: durationpb.New(7 * day),
		ExpirationPolicy:         &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(31 * day)},
		PushConfig:               &pubsubpb.PushConfig{},
		State:                    pubsubpb.Subscription_ACTIVE,
	}
	got, err := tryCreate(t, e, topic)
	if err != nil {
		t.Fatal(err)
	}
	want.Name = got.GetName()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetSubscription (-want +got):\n%s", diff)
	}
	for s, err := range e.Subs.ListSubscriptions(t.Context(), &pubsubpb.ListSubscriptionsRequest{Project: "projects/" + e.Project}).All() {
		if err != nil {
			t.Fatal(err)
		}
		if s.GetName() == want.GetName() {
			if diff := cmp.Diff(want, s, protocmp.Transform()); diff != "" {
				t.Errorf("ListSubscriptions (-want +got):\n%s", diff)
			}
			return
		}
	}
	t.Errorf("ListSubscriptions does not have %s", want.GetName())
}

func ackDeadlines(t *testing.T, e *Env) {
	topic := e.Topic(t)
	tests := []struct {
		seconds, shown int32
		want           codes.Code
	}{
		{10, 10, codes.OK},
		{11, 11, codes.OK},
		{600, 600, codes.OK},
		{0, 10, codes.OK},
		{-1, 0, codes.InvalidArgument},
		{1, 0, codes.InvalidArgument},
		{9, 0, codes.InvalidArgument},
		{601, 0, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.seconds), func(t *testing.T) {
			tryBoth(t, e, topic, func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = test.seconds }, test.want,
				func(t *testing.T, s *pubsubpb.Subscription) {
					if got := s.GetAckDeadlineSeconds(); got != test.shown {
						t.Errorf("got %d seconds, want %d", got, test.shown)
					}
				}, "ack_deadline_seconds")
		})
	}
}

func exactlyOnceDeadline(t *testing.T, e *Env) {
	topic := e.Topic(t)
	for given, want := range map[int32]int32{0: 60, 10: 10, 20: 20, 600: 600} {
		t.Run(fmt.Sprint(given), func(t *testing.T) {
			got, err := tryCreate(t, e, topic, ExactlyOnce, func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = given })
			if err != nil {
				t.Fatal(err)
			}
			if got.GetAckDeadlineSeconds() != want {
				t.Errorf("got %d seconds, want %d", got.GetAckDeadlineSeconds(), want)
			}
		})
	}
}

func subscriptionRetentionLimits(t *testing.T, e *Env) {
	topic := e.Topic(t)
	tests := []struct {
		name string
		d    time.Duration
		want codes.Code
	}{
		{"10 minutes", 10 * time.Minute, codes.OK},
		{"8 days", 8 * day, codes.OK},
		{"31 days", 31 * day, codes.OK},
		{"a bit less than 10 minutes", 10*time.Minute - time.Second, codes.InvalidArgument},
		{"a bit more than 31 days", 31*day + time.Second, codes.InvalidArgument},
		{"negative", -time.Hour, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tryBoth(t, e, topic, func(s *pubsubpb.Subscription) {
				s.MessageRetentionDuration = durationpb.New(test.d)
				s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{} // so that it allows all of them
			}, test.want, func(t *testing.T, s *pubsubpb.Subscription) {
				if got := s.GetMessageRetentionDuration().AsDuration(); got != test.d {
					t.Errorf("got %v, want %v", got, test.d)
				}
			}, "message_retention_duration", "expiration_policy")
		})
	}
}

func shortestLife(t *testing.T, e *Env) {
	topic := e.Topic(t)
	tests := []struct {
		name string
		ttl  time.Duration
		want codes.Code
	}{
		{"a day", day, codes.OK},
		{"a year", 365 * day, codes.OK},
		{"a bit less than a day", day - time.Second, codes.InvalidArgument},
		{"an hour", time.Hour, codes.InvalidArgument},
		{"zero", 0, codes.InvalidArgument},
		{"negative", -day, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tryBoth(t, e, topic, func(s *pubsubpb.Subscription) {
				s.MessageRetentionDuration = durationpb.New(10 * time.Minute) // shorter than all of them but those of the last rows
				s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(test.ttl)}
			}, test.want, func(t *testing.T, s *pubsubpb.Subscription) {
				if got := s.GetExpirationPolicy().GetTtl().AsDuration(); got != test.ttl {
					t.Errorf("got %v, want %v", got, test.ttl)
				}
			}, "message_retention_duration", "expiration_policy")
		})
	}
}

func lifeAndRetention(t *testing.T, e *Env) {
	topic := e.Topic(t)
	tests := []struct {
		name           string
		ttl, retention time.Duration // 0: not given
		want           codes.Code
	}{
		{"shorter", 2*day - time.Second, 2 * day, codes.InvalidArgument},
		{"shorter than the default retention", 6 * day, 0, codes.InvalidArgument},
		{"equal", 2 * day, 2 * day, codes.OK},
		{"default life and longest retention", 0, 31 * day, codes.OK},
		{"longer", 3 * day, 2 * day, codes.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			change := func(s *pubsubpb.Subscription) {
				if test.ttl != 0 {
					living(test.ttl)(s)
				}
				if test.retention != 0 {
					retaining(test.retention)(s)
				}
			}
			tryBoth(t, e, topic, change, test.want, func(*testing.T, *pubsubpb.Subscription) {},
				"expiration_policy", "message_retention_duration")
		})
	}
	t.Run("update of one of them", func(t *testing.T) {
		sub := e.Subscription(t, topic, living(5*day), retaining(3*day))
		_, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{
			Name: sub, MessageRetentionDuration: durationpb.New(6 * day),
		}, "message_retention_duration")
		WantCode(t, err, codes.InvalidArgument)
		_, err = subscriptionUpdate(t, e, &pubsubpb.Subscription{
			Name: sub, ExpirationPolicy: &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(2 * day)},
		}, "expiration_policy")
		WantCode(t, err, codes.InvalidArgument)
		_, err = subscriptionUpdate(t, e, &pubsubpb.Subscription{
			Name: sub, ExpirationPolicy: &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(3 * day)},
		}, "expiration_policy")
		WantCode(t, err, codes.OK)
	})
}

func neverExpires(t *testing.T, e *Env) {
	topic := e.Topic(t)
	created, err := tryCreate(t, e, topic, func(s *pubsubpb.Subscription) { s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{} })
	if err != nil {
		t.Fatal(err)
	}
	updated := e.Subscription(t, topic)
	if _, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{
		Name: updated, ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
	}, "expiration_policy"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // now and after years
		for _, name := range []string{created.GetName(), updated} {
			policy := subscriptionNow(t, e, name).GetExpirationPolicy()
			if policy == nil || policy.GetTtl() != nil {
				t.Errorf("got expiration policy %v, want one without ttl", policy)
			}
		}
		e.Advance(1000 * day)
	}
}

func unusedSubscription(t *testing.T, e *Env) {
	topic := e.Topic(t)
	brief := []func(*pubsubpb.Subscription){living(day), retaining(10 * time.Minute)}
	uses := map[string]func(t *testing.T, sub string){
		"Pull": func(t *testing.T, sub string) { wantTexts(t, e, sub, "m") },
		"Acknowledge": func(t *testing.T, sub string) {
			e.Ack(t, sub, wantTexts(t, e, sub, "m")...)
		},
		"ModifyAckDeadline": func(t *testing.T, sub string) {
			e.Extend(t, sub, 20, wantTexts(t, e, sub, "m")...)
		},
		"GetSubscription": func(t *testing.T, sub string) { subscriptionNow(t, e, sub) },
		"UpdateSubscription": func(t *testing.T, sub string) {
			if _, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{Name: sub}, "labels"); err != nil {
				t.Error(err)
			}
		},
		"Seek":           func(t *testing.T, sub string) { seekToTime(t, e, sub, aBeginning()) },
		"CreateSnapshot": func(t *testing.T, sub string) { snapshotOf(t, e, sub) },
		"StreamingPull": func(t *testing.T, sub string) {
			stream := streamFrom(t, e, sub)
			nextMessages(t, stream)
		},
	}
	subs := map[string]string{}
	for name := range uses {
		subs[name] = e.Subscription(t, topic, brief...)
	}
	// Two that are not used: publishing is no use of a subscription.
	idle, idleWithStream := e.Subscription(t, topic, brief...), e.Subscription(t, topic, brief...)

	e.Advance(20 * time.Hour)
	e.Publish(t, topic, "", "m")
	for name, use := range uses {
		use(t, subs[name])
	}
	stream := streamFrom(t, e, idleWithStream)
	nextMessages(t, stream)
	e.Advance(20 * time.Minute)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := endOf(t, stream); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v, want EOF", err)
	}

	e.Advance(20 * time.Hour)
	e.Publish(t, topic, "", "late")
	if _, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: idle, Topic: topic}, singleTry); err != nil {
		t.Errorf("create the expired one again: %v", err)
	} else {
		wantTexts(t, e, idle)
	}
	for name, sub := range subs {
		if _, err := e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: sub}, singleTry); err != nil {
			t.Errorf("20 hours after %s: %v, want that it lives", name, err)
		}
	}
	// 24 hours and 10 minutes after its stream was opened, 23:50 after it was closed.
	e.Advance(3*time.Hour + 50*time.Minute)
	subscriptionNow(t, e, idleWithStream)

	e.Advance(25 * time.Hour)
	for name, sub := range subs {
		_, err := e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: sub}, singleTry)
		if t.Run("gone after "+name, func(t *testing.T) { WantCode(t, err, codes.NotFound) }); err != nil {
			_, err = e.Subs.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: sub, MaxMessages: 1}, singleTry)
			WantCode(t, err, codes.NotFound)
		}
	}
	_, err := e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: idleWithStream}, singleTry)
	WantCode(t, err, codes.NotFound)
}

func retryLimits(t *testing.T, e *Env) {
	topic := e.Topic(t)
	d := func(seconds int64) *durationpb.Duration { return &durationpb.Duration{Seconds: seconds} }
	tests := []struct {
		name         string
		given, shown *pubsubpb.RetryPolicy
		want         codes.Code
	}{
		{"widest", &pubsubpb.RetryPolicy{MinimumBackoff: d(0), MaximumBackoff: d(600)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(0), MaximumBackoff: d(600)}, codes.OK},
		{"equal", &pubsubpb.RetryPolicy{MinimumBackoff: d(30), MaximumBackoff: d(30)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(30), MaximumBackoff: d(30)}, codes.OK},
		{"both 0", &pubsubpb.RetryPolicy{MinimumBackoff: d(0), MaximumBackoff: d(0)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(0), MaximumBackoff: d(0)}, codes.OK},
		{"unset", &pubsubpb.RetryPolicy{},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(10), MaximumBackoff: d(600)}, codes.OK},
		{"maximum unset", &pubsubpb.RetryPolicy{MinimumBackoff: d(20)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(20), MaximumBackoff: d(600)}, codes.OK},
		{"minimum unset", &pubsubpb.RetryPolicy{MaximumBackoff: d(20)},
			&pubsubpb.RetryPolicy{MinimumBackoff: d(10), MaximumBackoff: d(20)}, codes.OK},
		{"minimum above maximum", &pubsubpb.RetryPolicy{MinimumBackoff: d(31), MaximumBackoff: d(30)}, nil, codes.InvalidArgument},
		{"minimum negative", &pubsubpb.RetryPolicy{MinimumBackoff: d(-1)}, nil, codes.InvalidArgument},
		{"minimum too long", &pubsubpb.RetryPolicy{MinimumBackoff: d(601), MaximumBackoff: d(601)}, nil, codes.InvalidArgument},
		{"maximum negative", &pubsubpb.RetryPolicy{MinimumBackoff: d(-2), MaximumBackoff: d(-1)}, nil, codes.InvalidArgument},
		{"maximum too long", &pubsubpb.RetryPolicy{MaximumBackoff: d(601)}, nil, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tryBoth(t, e, topic, func(s *pubsubpb.Subscription) { s.RetryPolicy = test.given }, test.want,
				func(t *testing.T, s *pubsubpb.Subscription) {
					if diff := cmp.Diff(test.shown, s.GetRetryPolicy(), protocmp.Transform()); diff != "" {
						t.Errorf("retry policy (-want +got):\n%s", diff)
					}
				}, "retry_policy")
		})
	}
}

func withoutRetryPolicy(t *testing.T, e *Env) {
	t.Run("Pull", func(t *testing.T) {
		topic := e.Topic(t)
		sub := e.Subscription(t, topic)
		e.Publish(t, topic, "", "m")
		for range 3 {
			e.Nack(t, sub, wantTexts(t, e, sub, "m")...)
		}
		wantTexts(t, e, sub, "m")
		e.Advance(10 * time.Second) // the lease ends
		wantTexts(t, e, sub, "m")
	})
	t.Run("StreamingPull", func(t *testing.T) {
		topic := e.Topic(t)
		sub := e.Subscription(t, topic)
		stream := streamFrom(t, e, sub)
		e.Publish(t, topic, "", "m")
		before := time.Now()
		for range 3 {
			e.Nack(t, sub, nextMessages(t, stream).GetReceivedMessages()...)
		}
		nextMessages(t, stream)
		e.Advance(10 * time.Second)
		nextMessages(t, stream)
		if took := time.Since(before); took > 5*time.Second {
			t.Errorf("five deliveries took %v, want them at once", took)
		}
	})
}

func retryDelays(t *testing.T, e *Env) {
	topic := e.Topic(t)
	for _, test := range []struct {
		name   string
		policy func(*pubsubpb.Subscription)
		delays []int // in seconds
	}{
		{"up to the maximum", delaying(10*time.Second, time.Minute), []int{10, 20, 40, 60, 60}},
		{"default", func(s *pubsubpb.Subscription) { s.RetryPolicy = &pubsubpb.RetryPolicy{} },
			[]int{10, 20, 40, 80, 160, 320, 600, 600}},
		{"always the same", delaying(30*time.Second, 30*time.Second), []int{30, 30, 30}},
	} {
		t.Run(test.name, func(t *testing.T) {
			sub := e.Subscription(t, topic, test.policy)
			e.Publish(t, topic, "", "m")
			failed := wantTexts(t, e, sub, "m")
			for i, seconds := range test.delays {
				delay := time.Duration(seconds) * time.Second
				if i == 1 { // the end of a lease is a failure like any other
					e.Advance(10 * time.Second)
				} else {
					e.Nack(t, sub, failed...)
				}
				e.Advance(delay - 4*time.Second) // the clock runs while we look
				wantTexts(t, e, sub)
				e.Advance(4 * time.Second)
				if failed = wantTexts(t, e, sub, "m"); len(failed) == 0 {
					t.Fatalf("nothing %v after failure %d", delay, i+1)
				}
			}
			e.Ack(t, sub, failed...)
		})
	}
}

func retryDelayOfOne(t *testing.T, e *Env) {
	delay := delaying(5*time.Minute, 10*time.Minute)
	t.Run("unordered", func(t *testing.T) {
		topic := e.Topic(t)
		sub := e.Subscription(t, topic, delay)
		e.Publish(t, topic, "a", "a1")
		e.Nack(t, sub, wantTexts(t, e, sub, "a1")...)
		e.Publish(t, topic, "a", "a2")
		e.Publish(t, topic, "", "x")
		e.Ack(t, sub, wantTexts(t, e, sub, "a2", "x")...)
		e.Advance(5 * time.Minute)
		wantTexts(t, e, sub, "a1")
	})
	t.Run("ordered", func(t *testing.T) {
		topic := e.Topic(t)
		sub := e.Subscription(t, topic, delay, Ordered)
		e.Publish(t, topic, "a", "a1")
		e.Nack(t, sub, wantTexts(t, e, sub, "a1")...)
		e.Publish(t, topic, "a", "a2")
		e.Publish(t, topic, "b", "b1")
		e.Publish(t, topic, "", "x")
		e.Ack(t, sub, wantTexts(t, e, sub, "b1", "x")...)
		e.Publish(t, topic, "b", "b2")
		e.Ack(t, sub, wantTexts(t, e, sub, "b2")...)
		e.Advance(5 * time.Minute)
		wantInOrder(t, e, sub, "a1", "a2")
	})
	t.Run("ordered, delivered together", func(t *testing.T) {
		topic := e.Topic(t)
		sub := e.Subscription(t, topic, delay, Ordered)
		e.Publish(t, topic, "a", "a1", "a2", "a3")
		run := e.Pull(t, sub, 10)
		if len(run) == 0 {
			t.Fatal("got no messages")
		}
		e.Nack(t, sub, run[0])
		e.Advance(15 * time.Second) // past all leases: those of the later ones ended with the nack, and are no failures
		wantTexts(t, e, sub)
		e.Advance(5*time.Minute - 15*time.Second)
		wantInOrder(t, e, sub, "a1", "a2", "a3")
	})
}

// wantInOrder receives and acknowledges messages, and wants exactly these texts in this order.
func wantInOrder(t *testing.T, e *Env, sub string, want ...string) {
	t.Helper()
	var got []string
	for len(got) < len(want) {
		messages := e.Pull(t, sub, 10)
		if len(messages) == 0 {
			break
		}
		got = append(got, Texts(messages)...)
		e.Ack(t, sub, messages...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func ackedRetained(t *testing.T, e *Env) {
	topic := e.Topic(t)
	keeping := e.Subscription(t, topic, retaining(time.Hour), retainingAcked)
	plain := e.Subscription(t, topic, retaining(time.Hour))
	e.Publish(t, topic, "", "1", "2")
	for _, sub := range []string{keeping, plain} {
		e.Ack(t, sub, wantTexts(t, e, sub, "1", "2")...)
		wantTexts(t, e, sub) // kept, not delivered
	}
	seekToTime(t, e, plain, aBeginning())
	wantTexts(t, e, plain)
	e.Advance(50 * time.Minute)
	seekToTime(t, e, keeping, aBeginning())
	// An hour from publication, not from the last acknowledgment.
	e.Ack(t, keeping, wantTexts(t, e, keeping, "1", "2")...)
	e.Publish(t, topic, "", "3")
	e.Ack(t, keeping, wantTexts(t, e, keeping, "3")...)
	e.Advance(15 * time.Minute)
	seekToTime(t, e, keeping, aBeginning())
	wantTexts(t, e, keeping, "3")
}

func unackedDropped(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub := e.Subscription(t, topic, retaining(10*time.Minute), func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 600 })
	waiting := e.Subscription(t, topic, retaining(10*time.Minute))
	e.Publish(t, topic, "", "1", "2", "3")
	e.Advance(8 * time.Minute)
	outstanding := wantTexts(t, e, sub, "1", "2", "3")
	if len(outstanding) != 3 {
		t.Fatalf("got %d messages, want 3", len(outstanding))
	}
	e.Publish(t, topic, "", "new")
	e.Advance(3 * time.Minute)
	wantTexts(t, e, waiting, "new")
	e.Ack(t, sub, outstanding[0])
	e.Nack(t, sub, outstanding[1])
	e.Ack(t, sub, wantTexts(t, e, sub, "new")...)
	e.Advance(10 * time.Minute) // the lease of the third one ends
	wantTexts(t, e, sub)
	seekToTime(t, e, sub, aBeginning())
	wantTexts(t, e, sub)
}

func detach(t *testing.T, e *Env, sub string) {
	t.Helper()
	if _, err := e.Topics.DetachSubscription(t.Context(), &pubsubpb.DetachSubscriptionRequest{Subscription: sub}); err != nil {
		t.Fatalf("DetachSubscription: %v", err)
	}
}

func detached(t *testing.T, e *Env) {
	topic := e.Topic(t, keeping(time.Hour))
	sub, other := e.Subscription(t, topic), e.Subscription(t, topic)
	stream := streamFrom(t, e, sub)
	e.Publish(t, topic, "", "before")
	leased := nextMessages(t, stream).GetReceivedMessages()
	if subscriptionNow(t, e, sub).GetDetached() {
		t.Error("detached from the beginning")
	}
	detach(t, e, sub)
	e.Publish(t, topic, "", "after")
	WantCode(t, endOf(t, stream), codes.FailedPrecondition)
	_, err := e.Subs.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: sub, MaxMessages: 1}, singleTry)
	WantCode(t, err, codes.FailedPrecondition)
	WantCode(t, endOf(t, streamFrom(t, e, sub)), codes.FailedPrecondition)
	if !subscriptionNow(t, e, sub).GetDetached() {
		t.Error("not shown as detached")
	}
	// Whatever becomes of what was leased, it does not come back.
	_ = e.Subs.ModifyAckDeadline(t.Context(), &pubsubpb.ModifyAckDeadlineRequest{Subscription: sub, AckIds: AckIDs(leased)}, singleTry)
	_, err = e.Subs.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: sub, MaxMessages: 1}, singleTry)
	WantCode(t, err, codes.FailedPrecondition)
	wantTexts(t, e, other, "before", "after")
}

func detachedForGood(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub, other := e.Subscription(t, topic), e.Subscription(t, topic)
	detach(t, e, sub)
	if !subscriptionNow(t, e, sub).GetDetached() {
		t.Error("GetSubscription: not detached")
	}
	listed := 0
	for s, err := range e.Subs.ListSubscriptions(t.Context(), &pubsubpb.ListSubscriptionsRequest{Project: "projects/" + e.Project}).All() {
		if err != nil {
			t.Fatal(err)
		}
		if s.GetName() == sub {
			listed++
			if !s.GetDetached() {
				t.Error("ListSubscriptions: not detached")
			}
		}
	}
	if listed != 1 {
		t.Errorf("ListSubscriptions has it %d times, want once", listed)
	}
	var attached []string
	for name, err := range e.Topics.ListTopicSubscriptions(t.Context(), &pubsubpb.ListTopicSubscriptionsRequest{Topic: topic}).All() {
		if err != nil {
			t.Fatal(err)
		}
		attached = append(attached, name)
	}
	if diff := cmp.Diff([]string{other}, attached); diff != "" {
		t.Errorf("ListTopicSubscriptions (-want +got):\n%s", diff)
	}

	for _, path := range []string{"detached", "topic"} {
		_, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{Name: sub, Topic: topic}, path)
		WantCode(t, err, codes.InvalidArgument)
	}
	_, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: sub, Topic: topic}, singleTry)
	WantCode(t, err, codes.AlreadyExists)
	if !subscriptionNow(t, e, sub).GetDetached() {
		t.Error("attached again")
	}
	if err := e.Subs.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: sub}, singleTry); err != nil {
		t.Fatal(err)
	}
	_, err = e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: sub}, singleTry)
	WantCode(t, err, codes.NotFound)
}

// destination is a way of delivery other than pulling.
type destination struct {
	set  func(*pubsubpb.Subscription)
	path string
}

func destinations(e *Env) []destination {
	return []destination{
		{func(s *pubsubpb.Subscription) {
			s.PushConfig = &pubsubpb.PushConfig{PushEndpoint: "https://example.com/push"}
		}, "push_config"},
		{func(s *pubsubpb.Subscription) {
			s.BigqueryConfig = &pubsubpb.BigQueryConfig{Table: e.Project + ".dataset.table"}
		}, "bigquery_config"},
		{func(s *pubsubpb.Subscription) {
			s.CloudStorageConfig = &pubsubpb.CloudStorageConfig{Bucket: "some-bucket"}
		}, "cloud_storage_config"},
		{func(s *pubsubpb.Subscription) {
			s.BigtableConfig = &pubsubpb.BigtableConfig{Table: "projects/" + e.Project + "/instances/i/tables/t"}
		}, "bigtable_config"},
	}
}

func oneWayOfDelivery(t *testing.T, e *Env) {
	topic := e.Topic(t)
	all := destinations(e)
	nothing := func(*testing.T, *pubsubpb.Subscription) {}
	for i, first := range all {
		for _, second := range all[i+1:] {
			t.Run(first.path+" and "+second.path, func(t *testing.T) {
				tryBoth(t, e, topic, func(s *pubsubpb.Subscription) { first.set(s); second.set(s) }, codes.InvalidArgument, nothing,
					first.path, second.path)
			})
		}
	}
	t.Run("all", func(t *testing.T) {
		tryBoth(t, e, topic, func(s *pubsubpb.Subscription) {
			for _, d := range all {
				d.set(s)
			}
		}, codes.InvalidArgument, nothing, all[0].path, all[1].path, all[2].path, all[3].path)
	})
	t.Run("one", func(t *testing.T) {
		tryBoth(t, e, topic, all[0].set, codes.OK, func(t *testing.T, s *pubsubpb.Subscription) {
			if got := s.GetPushConfig().GetPushEndpoint(); got != "https://example.com/push" {
				t.Errorf("got endpoint %q", got)
			}
		}, all[0].path)
	})
}

func exactlyOncePulls(t *testing.T, e *Env) {
	topic := e.Topic(t)
	for _, d := range destinations(e) {
		t.Run(d.path, func(t *testing.T) {
			tryBoth(t, e, topic, func(s *pubsubpb.Subscription) { ExactlyOnce(s); d.set(s) }, codes.InvalidArgument,
				func(*testing.T, *pubsubpb.Subscription) {}, "enable_exactly_once_delivery", d.path)
			sub := e.Subscription(t, topic, ExactlyOnce)
			body := &pubsubpb.Subscription{Name: sub}
			d.set(body)
			_, err := subscriptionUpdate(t, e, body, d.path)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
	push := destinations(e)[0]
	t.Run("push, then exactly-once", func(t *testing.T) {
		sub := e.Subscription(t, topic, push.set)
		_, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{Name: sub, EnableExactlyOnceDelivery: true}, "enable_exactly_once_delivery")
		WantCode(t, err, codes.InvalidArgument)
	})
	t.Run("exactly-once, then ModifyPushConfig", func(t *testing.T) {
		sub := e.Subscription(t, topic, ExactlyOnce)
		body := &pubsubpb.Subscription{}
		push.set(body)
		err := e.Subs.ModifyPushConfig(t.Context(), &pubsubpb.ModifyPushConfigRequest{
			Subscription: sub, PushConfig: body.GetPushConfig(),
		}, singleTry)
		WantCode(t, err, codes.InvalidArgument)
	})
	t.Run("alone", func(t *testing.T) {
		tryBoth(t, e, topic, ExactlyOnce, codes.OK, func(t *testing.T, s *pubsubpb.Subscription) {
			if !s.GetEnableExactlyOnceDelivery() {
				t.Error("exactly-once delivery is off")
			}
		}, "enable_exactly_once_delivery")
	})
}

func switchExactlyOnce(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	stream := streamFrom(t, e, sub)
	var outstanding []*pubsubpb.ReceivedMessage // kept over all switches
	for i, on := range []bool{false, true, false, true} {
		if i > 0 {
			body := &pubsubpb.Subscription{Name: sub, EnableExactlyOnceDelivery: on}
			want, _ := proto.Clone(subscriptionNow(t, e, sub)).(*pubsubpb.Subscription)
			want.EnableExactlyOnceDelivery = on
			got, err := subscriptionUpdate(t, e, body, "enable_exactly_once_delivery")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("switched to %v (-want +got):\n%s", on, diff)
			}
		}
		e.Publish(t, topic, "", fmt.Sprint(i))
		response := nextMessages(t, stream)
		if got := response.GetSubscriptionProperties().GetExactlyOnceDeliveryEnabled(); got != on {
			t.Errorf("the stream was told %v, want %v", got, on)
		}
		outstanding = slices.Concat(outstanding, response.GetReceivedMessages())
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3"}, Texts(outstanding)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}
