package conformance

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
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
	{ID: "D19", Sentence: "Exactly-once delivery can be switched, and open streams report the change.", Run: switchExactlyOnce},
}

// delaying sets the retry policy of a subscription.
func delaying(shortest, longest time.Duration) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) {
		s.RetryPolicy = &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(shortest), MaximumBackoff: durationpb.New(longest)}
	}
}

// living sets the expiration of a subscription.
func living(ttl time.Duration) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) {
		s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(ttl)}
	}
}

// tryCreate creates a subscription, which may fail. If it succeeds, it returns the result of GetSubscription.
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

// tryBoth creates a subscription with a change, and makes the same change to another one by an update of
// these paths. Both must return the same code, or have the same result, which check tests.
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
				s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{} // no expiration, so that all of them are allowed
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
				s.MessageRetentionDuration = durationpb.New(10 * time.Minute) // shorter than all values except in the last rows
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
		ttl, retention time.Duration // 0: not set
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
	for range 2 { // now, and after years
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
	// Both are unused, because publishing is not a use of a subscription.
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
	// This is 24 hours and 10 minutes after its stream was opened, and 23:50 after it was closed.
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
