package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

var pull = []Case{
	{
		ID: "F1", Sentence: "A pull for less than one message is refused, and leases nothing.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			e.Publish(t, topic, "", "a")
			for _, limit := range []int32{0, -1} {
				_, err := e.Subs.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: sub, MaxMessages: limit})
				WantCode(t, err, codes.InvalidArgument)
			}
			pullInOrder(t, e, sub, "a")
		},
	},
	{
		ID: "F2", Sentence: "A pull returns at most as many messages as requested, and at most 1,000.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			want := serial(1, 1500)
			e.Publish(t, topic, "", want[:1000]...)
			e.Publish(t, topic, "", want[1000:]...)

			var got []*pubsubpb.ReceivedMessage
			for _, limit := range []int{1, 3, 2000} {
				messages := e.Pull(t, sub, limit)
				if n := len(messages); n < 1 || n > min(limit, 1000) {
					t.Errorf("a pull for %d got %d messages, want 1 to %d", limit, n, min(limit, 1000))
				}
				got = append(got, messages...)
			}
			for len(got) < len(want) {
				messages := e.Pull(t, sub, 1000)
				if len(messages) == 0 {
					break
				}
				got = append(got, messages...)
			}
			wantEqual(t, want, slices.Sorted(slices.Values(Texts(got))), "all pulls together")
		},
	},
	{
		ID: "F3", Sentence: "return_immediately returns at once, with an empty list if there is no message.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			for _, want := range [][]string{nil, {"a"}, nil} {
				e.publishEach(t, topic, want...)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				start := time.Now()
				response, err := e.Subs.Pull(ctx, &pubsubpb.PullRequest{
					Subscription: sub, MaxMessages: 10,
					ReturnImmediately: true, //nolint:staticcheck // deprecated, but this is what the case tests
				})
				must(t, err)
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("the response took %v, want it at once", took)
				}
				wantEqual(t, want, Texts(response.GetReceivedMessages()), "messages")
			}
		},
	},
	{
		ID: "F4", Sentence: "A pull waits for a message, 20 s or its deadline, then returns an empty list.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			t.Run("message", func(t *testing.T) {
				answer := pullInBackground(t.Context(), e, sub)
				answer.wantNone(t)
				e.Publish(t, topic, "", "a")
				wantEqual(t, []string{"a"}, Texts(answer.want(t)), "messages")
			})
			t.Run("20 s", func(t *testing.T) {
				sub := e.Subscription(t, topic)
				answer := pullInBackground(t.Context(), e, sub)
				answer.wantNone(t)
				e.Advance(15 * time.Second)
				answer.wantNone(t)
				e.Advance(6 * time.Second)
				if got := Texts(answer.want(t)); len(got) > 0 {
					t.Errorf("got %q, want nothing", got)
				}
			})
			t.Run("deadline", func(t *testing.T) {
				sub := e.Subscription(t, topic)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				response, err := e.Subs.Pull(ctx, &pubsubpb.PullRequest{Subscription: sub, MaxMessages: 10})
				if err != nil {
					t.Fatalf("got %v, want a response before the deadline", err)
				}
				if got := Texts(response.GetReceivedMessages()); len(got) > 0 {
					t.Errorf("got %q, want nothing", got)
				}
				if took := time.Since(start); took < 300*time.Millisecond {
					t.Errorf("the response took %v, want it just before 1 s", took)
				}
			})
		},
	},
	{
		ID: "F5", Sentence: "A pulled message is leased for the ack deadline of the subscription, from the response on.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, leasedFor(20))
			answer := pullInBackground(t.Context(), e, sub)
			answer.wantNone(t)
			e.Advance(15 * time.Second) // a pull waits for 20 seconds
			e.Publish(t, topic, "", "a")
			answer.want(t)
			e.Advance(15 * time.Second)
			pullNothing(t, e, sub)
			e.Advance(10 * time.Second)
			pullInOrder(t, e, sub, "a")
		},
	},
	{
		ID: "F7", Sentence: "A pull whose caller disconnects before the response leases nothing.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, leasedFor(600))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			answers := []background{pullInBackground(ctx, e, sub), pullInBackground(ctx, e, sub)}
			for _, answer := range answers {
				answer.wantNone(t)
			}
			cancel()
			time.Sleep(silence) // time for the server to notice
			e.Publish(t, topic, "", "a")
			pullInOrder(t, e, sub, "a")
		},
	},
	{
		ID: "F8", Sentence: "delivery_attempt is 0 without dead-letter policy, else 1 and the nacks and expiries of that message.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			tests := []struct {
				name   string
				change []func(*pubsubpb.Subscription)
				want   []int32
			}{
				{"no policy", nil, []int32{0, 0, 0, 0}},
				{"policy", []func(*pubsubpb.Subscription){deadTo(e.Topic(t), 10)}, []int32{1, 2, 3, 4}},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					topic, sub := e.Subscribed(t, test.change...)
					e.Publish(t, topic, "", "a")
					var got []int32
					pullOnce := func() *pubsubpb.ReceivedMessage {
						m := pullInOrder(t, e, sub, "a")[0]
						got = append(got, m.GetDeliveryAttempt())
						return m
					}
					e.Nack(t, sub, pullOnce())
					e.Extend(t, sub, 10, pullOnce()) // an extension is not a delivery attempt
					e.Advance(15 * time.Second)
					e.Nack(t, sub, pullOnce())
					pullOnce()
					wantEqual(t, test.want, got, "delivery_attempt")
					e.Publish(t, topic, "", "b")
					wantEqual(t, test.want[0], pullInOrder(t, e, sub, "b")[0].GetDeliveryAttempt(), "delivery_attempt of another message")
				})
			}
		},
	},
}

// How long a case waits for messages that must come, and for those that must not.
const (
	patience = time.Minute
	silence  = 200 * time.Millisecond
)

// leasedFor sets the ack deadline of a subscription.
func leasedFor(seconds int32) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = seconds }
}

// delayedBy gives a subscription a retry policy that starts with a delay.
func delayedBy(d time.Duration) func(*pubsubpb.Subscription) { return delaying(d, 10*time.Minute) }

// deadTo gives a subscription a dead-letter policy.
func deadTo(topic string, attempts int) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) {
		s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: topic, MaxDeliveryAttempts: int32(attempts)} //nolint:gosec // few
	}
}

// serial returns the numbers from first to last as texts, which sort like the numbers.
func serial(first, last int) (texts []string) {
	for i := first; i <= last; i++ {
		texts = append(texts, fmt.Sprintf("%04d", i))
	}
	return texts
}

// publishEach publishes each text without a key, in its own request.
func (e *Env) publishEach(t *testing.T, topic string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		e.Publish(t, topic, "", text)
	}
}

// sortByText sorts messages, so that a case can name them by index.
func sortByText(messages []*pubsubpb.ReceivedMessage) []*pubsubpb.ReceivedMessage {
	slices.SortFunc(messages, func(a, b *pubsubpb.ReceivedMessage) int {
		return strings.Compare(string(a.GetMessage().GetData()), string(b.GetMessage().GetData()))
	})
	return messages
}

func pullUntil(t *testing.T, e *Env, sub string, n int) (messages []*pubsubpb.ReceivedMessage) {
	t.Helper()
	for end := time.Now().Add(patience); len(messages) < n && time.Now().Before(end); {
		messages = append(messages, e.Pull(t, sub, 1000)...)
	}
	return messages
}

// pullInOrder pulls until it has these messages, in this order.
func pullInOrder(t *testing.T, e *Env, sub string, want ...string) []*pubsubpb.ReceivedMessage {
	t.Helper()
	got := pullUntil(t, e, sub, len(want))
	if diff := cmp.Diff(want, Texts(got)); diff != "" {
		t.Fatalf("pulled (-want +got):\n%s", diff)
	}
	return got
}

// pullAny pulls until it has these messages, in any order, and returns them sorted by text.
func pullAny(t *testing.T, e *Env, sub string, want ...string) []*pubsubpb.ReceivedMessage {
	t.Helper()
	got := sortByText(pullUntil(t, e, sub, len(want)))
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), Texts(got)); diff != "" {
		t.Fatalf("pulled, sorted (-want +got):\n%s", diff)
	}
	return got
}

// pullNothing fails the test if there is a message to pull.
func pullNothing(t *testing.T, e *Env, sub string) {
	t.Helper()
	if got := Texts(e.Pull(t, sub, 1000)); len(got) > 0 {
		t.Fatalf("pulled %q, want nothing", got)
	}
}

// background is a running pull.
type background chan pulled

type pulled struct {
	messages []*pubsubpb.ReceivedMessage
	err      error
}

func pullInBackground(ctx context.Context, e *Env, sub string) background {
	answer := make(background, 1)
	go func() {
		response, err := e.Subs.Pull(ctx, &pubsubpb.PullRequest{Subscription: sub, MaxMessages: 10})
		answer <- pulled{response.GetReceivedMessages(), err}
	}()
	return answer
}

// want waits for the response.
func (b background) want(t *testing.T) []*pubsubpb.ReceivedMessage {
	t.Helper()
	select {
	case answer := <-b:
		if answer.err != nil {
			t.Fatalf("Pull: %v", answer.err)
		}
		return answer.messages
	case <-time.After(patience):
		t.Fatal("the pull still waits")
		return nil
	}
}

// wantNone fails the test if the pull returns. It waits long enough for the pull to reach the
// server.
func (b background) wantNone(t *testing.T) {
	t.Helper()
	select {
	case answer := <-b:
		t.Fatalf("the pull returned %q, %v; want it to wait", Texts(answer.messages), answer.err)
	case <-time.After(silence):
	}
}
