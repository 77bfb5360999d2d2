package conformance

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

// The attributes that a dead-letter copy has in addition to the attributes of
// the message.
const (
	deadLetterCount       = "CloudPubSubDeadLetterSourceDeliveryCount"
	deadLetterSource      = "CloudPubSubDeadLetterSourceSubscription"
	deadLetterProject     = "CloudPubSubDeadLetterSourceSubscriptionProject"
	deadLetterPublishTime = "CloudPubSubDeadLetterSourceTopicPublishTime"
)

// deadLetters are the cases of section K.
var deadLetters = []Case{
	{
		ID:       "K1",
		Sentence: "A dead-letter topic that does not exist at create or update is NOT_FOUND.",
		Run: func(t *testing.T, e *Env) {
			topic, missing := e.Topic(t), e.Name("topics")
			refused := &pubsubpb.Subscription{Name: e.Name("subscriptions"), Topic: topic, DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: missing}}
			WantCode(t, errOf(e.Subs.CreateSubscription(t.Context(), refused)), codes.NotFound)
			_, err := e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: refused.GetName()})
			WantCode(t, err, codes.NotFound)

			dead := e.Topic(t)
			sub := e.Subscription(t, topic, deadTo(dead, 7))
			WantCode(t, setDeadLetterPolicy(t, e, sub, &pubsubpb.DeadLetterPolicy{DeadLetterTopic: missing, MaxDeliveryAttempts: 9}), codes.NotFound)
			want := []any{dead, int32(7)}
			wantEqual(t, want, deadLetterPolicyOf(t, e, sub), "policy after the refused update")
		},
	},
	{
		ID:       "K2",
		Sentence: "max_delivery_attempts is 5 to 100; 0 becomes 5; anything else is INVALID_ARGUMENT.",
		Run: func(t *testing.T, e *Env) {
			topic, dead := e.Topic(t), e.Topic(t)
			for _, test := range []struct {
				attempts, want int32 // want 0: refused
			}{
				{-1, 0}, {0, 5}, {1, 0}, {4, 0}, {5, 5}, {6, 6}, {100, 100}, {101, 0},
			} {
				t.Run(strconv.Itoa(int(test.attempts)), func(t *testing.T) {
					policy := &pubsubpb.DeadLetterPolicy{DeadLetterTopic: dead, MaxDeliveryAttempts: test.attempts}
					created := &pubsubpb.Subscription{Name: e.Name("subscriptions"), Topic: topic, DeadLetterPolicy: policy}
					_, createErr := e.Subs.CreateSubscription(t.Context(), created)
					updated := e.Subscription(t, topic, deadTo(dead, 77))
					updateErr := setDeadLetterPolicy(t, e, updated, policy)
					if test.want == 0 {
						WantCode(t, createErr, codes.InvalidArgument)
						WantCode(t, updateErr, codes.InvalidArgument)
						wantEqual(t, []any{dead, int32(77)}, deadLetterPolicyOf(t, e, updated), "policy after the refused update")
						return
					}
					if createErr != nil || updateErr != nil {
						t.Fatalf("create: %v, update: %v", createErr, updateErr)
					}
					for _, sub := range []string{created.GetName(), updated} {
						wantEqual(t, []any{dead, test.want}, deadLetterPolicyOf(t, e, sub), "policy")
					}
				})
			}
		},
	},
	{
		ID:       "K3",
		Sentence: "The attempts of a message are 1 + its nacks + its expiries; the first delivery shows 1.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, deadTo(e.Topic(t), 20))
			e.Publish(t, topic, "", "m")
			fail := map[string]func(*pubsubpb.ReceivedMessage){
				"nack":   func(m *pubsubpb.ReceivedMessage) { e.Nack(t, sub, m) },
				"expiry": func(*pubsubpb.ReceivedMessage) { e.Advance(11 * time.Second) },
				"expiry of an extended lease": func(m *pubsubpb.ReceivedMessage) { // one failure, even if the lease was extended several times
					e.Extend(t, sub, 60, m)
					e.Extend(t, sub, 100, m)
					e.Advance(101 * time.Second)
				},
			}
			for i, how := range []string{"nack", "expiry", "nack", "nack", "expiry of an extended lease", "expiry", ""} {
				m := oneDelivery(t, e, sub)
				if got, want := m.GetDeliveryAttempt(), int32(i+1); got != want {
					t.Fatalf("before the %d. failure: got delivery_attempt %d, want %d", i+1, got, want)
				}
				if how != "" {
					fail[how](m)
				}
			}
			// Attempts are counted per message, not per subscription.
			e.Publish(t, topic, "", "other")
			wantEqual(t, int32(1), oneDelivery(t, e, sub).GetDeliveryAttempt(), "delivery_attempt of another message, delivered first")
		},
	},
	{
		ID:       "K4",
		Sentence: "When delivery number max_delivery_attempts fails, the message is published to the dead-letter topic once, and not delivered again.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			for _, test := range []struct {
				name string
				last func(t *testing.T, sub string, m *pubsubpb.ReceivedMessage)
			}{
				{"nack", func(t *testing.T, sub string, m *pubsubpb.ReceivedMessage) { e.Nack(t, sub, m) }},
				{"expiry", func(*testing.T, string, *pubsubpb.ReceivedMessage) { e.Advance(11 * time.Second) }},
			} {
				t.Run(test.name, func(t *testing.T) {
					topic, dead := e.Topic(t), e.Topic(t)
					sub, deadSub := e.Subscription(t, topic, deadTo(dead, 6)), e.Subscription(t, dead)
					e.Publish(t, topic, "", "m")
					failDeliveries(t, e, sub, 5)
					last := oneDelivery(t, e, sub)
					wantEqual(t, int32(6), last.GetDeliveryAttempt(), "delivery_attempt")
					pullNothing(t, e, deadSub) // the last attempt may still succeed
					test.last(t, sub, last)
					copies := pullAny(t, e, deadSub, "m")
					e.Ack(t, deadSub, copies...)
					pullNothing(t, e, sub)
					e.Advance(11 * time.Second)
					pullNothing(t, e, sub)
					pullNothing(t, e, deadSub)
				})
			}
			t.Run("acknowledged at the last attempt", func(t *testing.T) {
				topic, dead := e.Topic(t), e.Topic(t)
				sub, deadSub := e.Subscription(t, topic, deadTo(dead, 5)), e.Subscription(t, dead)
				e.Publish(t, topic, "", "m")
				failDeliveries(t, e, sub, 4)
				e.Ack(t, sub, oneDelivery(t, e, sub))
				e.Advance(11 * time.Second)
				pullNothing(t, e, deadSub)
			})
		},
	},
	{
		ID:       "K5",
		Sentence: "A message that was dead-lettered counts as acknowledged on the source.",
		Run: func(t *testing.T, e *Env) {
			topic, dead := e.Topic(t), e.Topic(t)
			e.Subscription(t, dead)
			sub := e.Subscription(t, topic, deadTo(dead, 5), retainingAcked)
			e.Publish(t, topic, "", "m")
			last := failDeliveries(t, e, sub, 5)
			pullNothing(t, e, sub)
			e.Ack(t, sub, last) // a late ack: no effect and no error

			// A seek brings it back.
			seekToTime(t, e, sub, last.GetMessage().GetPublishTime().AsTime())
			pullAny(t, e, sub, "m")
		},
	},
	{
		ID:       "K6",
		Sentence: "The copy is a new message with its own id and publish time and the same data, attributes and ordering key.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			for _, test := range []struct {
				name   string
				change []func(*pubsubpb.Subscription)
			}{
				{"unordered", nil},
				{"ordered", []func(*pubsubpb.Subscription){Ordered}},
			} {
				t.Run(test.name, func(t *testing.T) {
					topic, dead := e.Topic(t), e.Topic(t)
					sub, deadSub := e.Subscription(t, topic, append(test.change, deadTo(dead, 5))...), e.Subscription(t, dead)
					// Ids are unique only within a topic. The other message uses
					// up an id, so that the copy does not get the source's id by chance.
					other := e.Publish(t, dead, "", "other")
					e.Ack(t, deadSub, pullAny(t, e, deadSub, "other")...)

					source := &pubsubpb.PubsubMessage{Data: []byte{0, 0xff, 'x'}, OrderingKey: "key", Attributes: map[string]string{"a": "1", "ü": ""}}
					id := e.PublishMessages(t, topic, source)[0]
					failDeliveries(t, e, sub, 4)
					e.Advance(5 * time.Second)
					last := oneDelivery(t, e, sub)
					e.Nack(t, sub, last)

					got := oneDelivery(t, e, deadSub).GetMessage()
					if of := got.GetMessageId(); of == "" || of == other[0] || of == id {
						t.Errorf("got id %q, want one that differs from the source's %q and from %q, which its topic has", of, id, other[0])
					}
					if age := got.GetPublishTime().AsTime().Sub(last.GetMessage().GetPublishTime().AsTime()); age < 5*time.Second {
						t.Errorf("got a publish time %v after the source's, want that of the copy, at least 5 s", age)
					}
					attributes := maps.Clone(got.GetAttributes())
					maps.DeleteFunc(attributes, func(name, _ string) bool { return strings.HasPrefix(name, "CloudPubSubDeadLetter") })
					want := []any{source.GetData(), source.GetAttributes(), source.GetOrderingKey()}
					wantEqual(t, want, []any{got.GetData(), attributes, got.GetOrderingKey()}, "data, attributes, key")
				})
			}
		},
	},
	{
		ID:       "K7",
		Sentence: "The copy has four attributes more: the delivery count, the source subscription, its project, and the publish time there.",
		Run: func(t *testing.T, e *Env) {
			for _, attempts := range []int{5, 7} {
				t.Run(strconv.Itoa(attempts), func(t *testing.T) {
					topic, dead := e.Topic(t), e.Topic(t)
					sub, deadSub := e.Subscription(t, topic, deadTo(dead, attempts)), e.Subscription(t, dead)
					e.Publish(t, topic, "", "m")
					last := failDeliveries(t, e, sub, attempts)
					got := oneDelivery(t, e, deadSub).GetMessage().GetAttributes()
					want := map[string]string{
						deadLetterCount:       strconv.Itoa(attempts),
						deadLetterSource:      sub[strings.LastIndex(sub, "/")+1:],
						deadLetterProject:     e.Project,
						deadLetterPublishTime: last.GetMessage().GetPublishTime().AsTime().Format("2006-01-02T15:04:05.000+00:00"),
					}
					wantEqual(t, want, got, "attributes")
					if form := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$`); !form.MatchString(got[deadLetterPublishTime]) {
						t.Errorf("got publish time %q, want it as in 2026-08-24T10:35:14.812+00:00", got[deadLetterPublishTime])
					}
				})
			}
		},
	},
	{
		ID:       "K8",
		Sentence: "Neither the limits of Publish nor schemas are applied to the copy.",
		Run: func(t *testing.T, e *Env) {
			t.Run("104 attributes", func(t *testing.T) {
				topic, dead := e.Topic(t), e.Topic(t)
				sub, deadSub := e.Subscription(t, topic, deadTo(dead, 5)), e.Subscription(t, dead)
				m := &pubsubpb.PubsubMessage{Attributes: map[string]string{}}
				for i := range 100 {
					m.Attributes[strconv.Itoa(i)] = "x"
				}
				e.PublishMessages(t, topic, m)
				failDeliveries(t, e, sub, 5)
				wantEqual(t, 104, len(oneDelivery(t, e, deadSub).GetMessage().GetAttributes()), "number of attributes")
			})
			t.Run("schema", func(t *testing.T) {
				topic := e.Topic(t)
				dead := topicWithSchema(t, e, pubsubpb.Encoding_JSON, newSchema(t, e, filmV1).GetName())
				WantCode(t, publishData(t, e, dead, "no film"), codes.InvalidArgument)
				sub, deadSub := e.Subscription(t, topic, deadTo(dead, 5)), e.Subscription(t, dead)
				e.Publish(t, topic, "", "no film")
				failDeliveries(t, e, sub, 5)
				pullAny(t, e, deadSub, "no film")
				pullNothing(t, e, sub)
			})
		},
	},
	{
		ID:       "K9",
		Sentence: "While the dead-letter topic is deleted, the message is delivered on beyond the maximum.",
		Run: func(t *testing.T, e *Env) {
			topic, dead := e.Topic(t), e.Topic(t)
			sub := e.Subscription(t, topic, deadTo(dead, 5))
			e.Publish(t, topic, "", "m")
			failDeliveries(t, e, sub, 3)
			deleteTopic(t, e, dead)
			for attempt := int32(4); attempt <= 8; attempt++ {
				m := oneDelivery(t, e, sub)
				wantEqual(t, attempt, m.GetDeliveryAttempt(), "delivery_attempt")
				e.Nack(t, sub, m)
			}
			e.Ack(t, sub, oneDelivery(t, e, sub))
			pullNothing(t, e, sub)
		},
	},
	{
		ID:       "K10",
		Sentence: "Without a subscription on the dead-letter topic the copy is lost.",
		Run: func(t *testing.T, e *Env) {
			topic, dead := e.Topic(t), e.Topic(t)
			sub := e.Subscription(t, topic, deadTo(dead, 5))
			e.Publish(t, topic, "", "m")
			last := failDeliveries(t, e, sub, 5)
			pullNothing(t, e, sub)
			late := e.Subscription(t, dead)
			seekToTime(t, e, late, last.GetMessage().GetPublishTime().AsTime())
			pullNothing(t, e, late)
		},
	},
	{
		ID:       "K12",
		Sentence: "Adding the policy later starts the count at the next delivery; removing it shows delivery_attempt 0 and stops the forwarding.",
		Run: func(t *testing.T, e *Env) {
			topic, dead := e.Topic(t), e.Topic(t)
			sub, deadSub := e.Subscription(t, topic), e.Subscription(t, dead)
			e.Publish(t, topic, "", "m")
			attempts := func(n int) (got []int32) {
				for range n {
					m := oneDelivery(t, e, sub)
					got = append(got, m.GetDeliveryAttempt())
					e.Nack(t, sub, m)
				}
				return got
			}
			policy := &pubsubpb.DeadLetterPolicy{DeadLetterTopic: dead, MaxDeliveryAttempts: 5}
			set := func(policy *pubsubpb.DeadLetterPolicy) {
				must(t, setDeadLetterPolicy(t, e, sub, policy))
			}
			want := func(when string, got []int32, want ...int32) {
				t.Helper()
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("delivery attempts %s (-want +got):\n%s", when, diff)
				}
			}
			want("without policy", attempts(6), 0, 0, 0, 0, 0, 0)
			before := oneDelivery(t, e, sub)
			set(policy)
			e.Nack(t, sub, before) // an earlier delivery, which does not count
			want("after adding it", attempts(3), 1, 2, 3)
			set(nil)
			want("after removing it", attempts(6), 0, 0, 0, 0, 0, 0)
			pullNothing(t, e, deadSub)
			set(policy)
			want("after adding it again", attempts(5), 1, 2, 3, 4, 5)
			pullAny(t, e, deadSub, "m")
			pullNothing(t, e, sub)
		},
	},
	{
		ID:       "K13",
		Sentence: "Seek resets the counts of the messages that it makes unacknowledged.",
		Run: func(t *testing.T, e *Env) {
			for _, test := range []struct {
				name   string
				settle func(t *testing.T, e *Env, sub string, m *pubsubpb.ReceivedMessage)
			}{
				{"waiting", func(t *testing.T, e *Env, sub string, m *pubsubpb.ReceivedMessage) { e.Nack(t, sub, m) }},
				{"outstanding", func(*testing.T, *Env, string, *pubsubpb.ReceivedMessage) {}},
				{"acknowledged", func(t *testing.T, e *Env, sub string, m *pubsubpb.ReceivedMessage) { e.Ack(t, sub, m) }},
			} {
				t.Run(test.name, func(t *testing.T) {
					topic, dead := e.Topic(t), e.Topic(t)
					sub := e.Subscription(t, topic, deadTo(dead, 5), retainingAcked)
					deadSub := e.Subscription(t, dead)
					e.Publish(t, topic, "", "m")
					failDeliveries(t, e, sub, 3)
					m := oneDelivery(t, e, sub)
					test.settle(t, e, sub, m)
					seekToTime(t, e, sub, m.GetMessage().GetPublishTime().AsTime())
					for attempt := int32(1); attempt <= 5; attempt++ {
						m := oneDelivery(t, e, sub)
						wantEqual(t, attempt, m.GetDeliveryAttempt(), "delivery_attempt")
						e.Nack(t, sub, m)
					}
					pullAny(t, e, deadSub, "m")
				})
			}
		},
	},
	{
		ID:       "K14",
		Sentence: "The source topic itself may be the dead-letter topic.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub, other := e.Subscription(t, topic, deadTo(topic, 5)), e.Subscription(t, topic)
			e.Publish(t, topic, "", "m")
			last := failDeliveries(t, e, sub, 5)
			// The copy goes to every subscription of the topic, and has its own count.
			again := oneDelivery(t, e, sub)
			wantEqual(t, int32(1), again.GetDeliveryAttempt(), "delivery_attempt of the copy")
			if again.GetMessage().GetMessageId() == last.GetMessage().GetMessageId() {
				t.Errorf("got the source's id %q on the copy, want another", last.GetMessage().GetMessageId())
			}
			wantEqual(t, "5", again.GetMessage().GetAttributes()[deadLetterCount], "%s", deadLetterCount)
			var ids []string
			for _, m := range pullAny(t, e, other, "m", "m") {
				ids = append(ids, m.GetMessage().GetMessageId())
			}
			want := []string{last.GetMessage().GetMessageId(), again.GetMessage().GetMessageId()}
			slices.Sort(ids)
			slices.Sort(want)
			wantEqual(t, want, ids, "ids on another subscription")
		},
	},
}

// setDeadLetterPolicy changes the policy of a subscription; nil removes it.
func setDeadLetterPolicy(t *testing.T, e *Env, sub string, policy *pubsubpb.DeadLetterPolicy) error {
	t.Helper()
	return errOf(subscriptionUpdate(t, e, &pubsubpb.Subscription{Name: sub, DeadLetterPolicy: policy}, "dead_letter_policy"))
}

// deadLetterPolicyOf returns topic and attempts of a subscription's policy.
func deadLetterPolicyOf(t *testing.T, e *Env, sub string) []any {
	t.Helper()
	policy := subscriptionNow(t, e, sub).GetDeadLetterPolicy()
	return []any{policy.GetDeadLetterTopic(), policy.GetMaxDeliveryAttempts()}
}

// failDeliveries receives the only message of a subscription n times and nacks
// it each time. It returns the last delivery.
func failDeliveries(t *testing.T, e *Env, sub string, n int) (last *pubsubpb.ReceivedMessage) {
	t.Helper()
	for range n {
		last = oneDelivery(t, e, sub)
		e.Nack(t, sub, last)
	}
	return last
}
