package conformance

import (
	"fmt"
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
	{ID: "D4", Sentence: "A subscription keeps messages for 10 minutes to 31 days.", Run: subscriptionRetentionLimits},
	{ID: "D9", Sentence: "Retry delays are 0 to 600 seconds, by default 10 and 600, the minimum not above the maximum.", Run: retryLimits},
	{ID: "D10", Sentence: "Without retry policy a failed message comes again at once.", Clock: true, Run: withoutRetryPolicy},
	{ID: "D11", Sentence: "With one the delay doubles with each failure up to the maximum.", Clock: true, Run: retryDelays},
	{ID: "D12", Sentence: "Only the failed message waits, and on an ordered subscription what follows with its key.", Clock: true,
		Run: retryDelayOfOne},
	{ID: "D13", Sentence: "Acknowledged messages are kept on demand, as long as the others.", Clock: true, Run: ackedRetained},
	{ID: "D14", Sentence: "Messages past the retention are dropped, outstanding ones too.", Clock: true, Run: unackedDropped},
}

// delaying sets the retry policy of a subscription.
func delaying(shortest, longest time.Duration) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) {
		s.RetryPolicy = &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(shortest), MaximumBackoff: durationpb.New(longest)}
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
	wantEqual(t, created, got, "GetSubscription differs from the response of CreateSubscription")
	return got, nil
}

// tryBoth creates a subscription with a change, and makes the same change to another one by an update of
// these paths. Both must return the code want. check tests the result of each.
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
		State:                    pubsubpb.Subscription_ACTIVE,
	}
	got, err := tryCreate(t, e, topic)
	must(t, err)
	want.Name = got.GetName()
	wantEqual(t, want, got, "GetSubscription")
	for s, err := range e.Subs.ListSubscriptions(t.Context(), &pubsubpb.ListSubscriptionsRequest{Project: "projects/" + e.Project}).All() {
		must(t, err)
		if s.GetName() == want.GetName() {
			wantEqual(t, want, s, "ListSubscriptions")
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
					wantEqual(t, test.shown, s.GetAckDeadlineSeconds(), "ack deadline in seconds")
				}, "ack_deadline_seconds")
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
			}, test.want, func(t *testing.T, s *pubsubpb.Subscription) {
				wantEqual(t, test.d, s.GetMessageRetentionDuration().AsDuration(), "retention")
			}, "message_retention_duration")
		})
	}
}
