package conformance

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

// filters are the cases of section E. The language itself, E2, E3 and E5 to E15, has a table in filter_test.go of pubsublocal.
var filters = []Case{
	{ID: "E1", Sentence: "A filter has at most 256 bytes; an empty one passes all.", Run: filterLength},
	{ID: "E4", Sentence: "What does not match counts as acknowledged.", Run: filteredIsAcked},
	{ID: "E16", Sentence: "Filtered messages leave no gap in the order of a key.", Run: filterOrdered},
	{ID: "E17", Sentence: "A seek respects the filter of its own subscription.", Run: filterSeek},
}

// filtering sets the filter of a subscription.
func filtering(filter string) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) { s.Filter = filter }
}

// attributes are the attributes of a message.
type attributes = map[string]string

// publishAll publishes a message for each text.
func publishAll(t *testing.T, e *Env, topic string, messages map[string]attributes) {
	t.Helper()
	request := &pubsubpb.PublishRequest{Topic: topic}
	for text, a := range messages {
		request.Messages = append(request.Messages, &pubsubpb.PubsubMessage{Data: []byte(text), Attributes: a})
	}
	if _, err := e.Topics.Publish(t.Context(), request); err != nil {
		t.Fatalf("Publish: %v", err)
	}
}

// filterTest is a filter, and the texts of the messages that match it.
type filterTest struct {
	filter string
	want   []string
}

// wantPassed publishes all messages to a subscription per filter, and compares what each receives.
func wantPassed(t *testing.T, e *Env, messages map[string]attributes, tests []filterTest) {
	t.Helper()
	topic := e.Topic(t)
	subs := map[string]string{}
	for _, test := range tests {
		sub, err := tryCreate(t, e, topic, filtering(test.filter))
		if err != nil {
			t.Errorf("filter %s: %v", test.filter, err)
			continue
		}
		if got := sub.GetFilter(); got != test.filter {
			t.Errorf("got filter %s, want %s", got, test.filter)
		}
		subs[test.filter] = sub.GetName()
	}
	publishAll(t, e, topic, messages)
	for _, test := range tests {
		if sub := subs[test.filter]; sub != "" {
			t.Run(test.filter, func(t *testing.T) { wantTexts(t, e, sub, test.want...) })
		}
	}
}

// wantUnparsed fails the test unless each of these filters is refused.
func wantUnparsed(t *testing.T, e *Env, filters ...string) {
	t.Helper()
	topic := e.Topic(t)
	for _, filter := range filters {
		t.Run(filter, func(t *testing.T) {
			_, err := tryCreate(t, e, topic, filtering(filter))
			WantCode(t, err, codes.InvalidArgument)
		})
	}
}

func filterLength(t *testing.T, e *Env) {
	const rest = `attributes.a = ""`
	value := strings.Repeat("x", 256-len(rest))
	wide := strings.Repeat("é", (256-len(rest)-1)/2) + "x"
	wantPassed(t, e, map[string]attributes{"none": nil, "other": {"a": "x"}, "equal": {"a": value}, "wide": {"a": wide}}, []filterTest{
		{"", []string{"none", "other", "equal", "wide"}},
		{`attributes.a = "` + value + `"`, []string{"equal"}},
		{`attributes.a = "` + wide + `"`, []string{"wide"}},
	})
	wantUnparsed(t, e,
		`attributes.a = "`+value+`x"`,
		`attributes.a = "`+wide+`x"`, // 257 bytes, but far fewer characters
		`attributes.a = "`+strings.Repeat("x", 10_000)+`"`)
}

func filteredIsAcked(t *testing.T, e *Env) {
	topic, dead := e.Topic(t), e.Topic(t)
	deadSub := e.Subscription(t, dead)
	sub := e.Subscription(t, topic, filtering("attributes:a"), func(s *pubsubpb.Subscription) {
		s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: dead, MaxDeliveryAttempts: 5}
	})
	all := e.Subscription(t, topic)
	publishAll(t, e, topic, map[string]attributes{"match": {"a": "x"}, "other": {"b": "x"}, "none": nil})
	wantTexts(t, e, all, "match", "other", "none")
	for range 5 {
		e.Nack(t, sub, wantTexts(t, e, sub, "match")...)
	}
	wantTexts(t, e, sub)
	wantTexts(t, e, deadSub, "match")
}

func filterOrdered(t *testing.T, e *Env) {
	topic := e.Topic(t)
	for name, batch := range map[string]int{"one at a time": 1, "many at a time": 10} {
		t.Run(name, func(t *testing.T) {
			sub := e.Subscription(t, topic, Ordered, filtering("attributes:a"))
			for _, m := range []*pubsubpb.PubsubMessage{
				{Data: []byte("none first")}, {Data: []byte("1"), Attributes: attributes{"a": ""}},
				{Data: []byte("none")}, {Data: []byte("2"), Attributes: attributes{"a": ""}},
				{Data: []byte("none")}, {Data: []byte("none")}, {Data: []byte("3"), Attributes: attributes{"a": ""}},
				{Data: []byte("none last")},
			} {
				m.OrderingKey = "k"
				if _, err := publishOnce(t, e, topic, m); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for range 4 {
				messages := e.Pull(t, sub, batch)
				if len(messages) == 0 {
					break
				}
				got = append(got, Texts(messages)...)
				e.Ack(t, sub, messages...)
			}
			if diff := cmp.Diff([]string{"1", "2", "3"}, got); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}

func filterSeek(t *testing.T, e *Env) {
	a, b, ab := attributes{"a": ""}, attributes{"b": ""}, attributes{"a": "", "b": ""}
	t.Run("to a time", func(t *testing.T) {
		topic := e.Topic(t, keeping(time.Hour))
		sub := e.Subscription(t, topic, filtering("attributes:a"))
		publishAll(t, e, topic, map[string]attributes{"a": a, "b": b, "ab": ab, "none": nil})
		e.Ack(t, sub, wantTexts(t, e, sub, "a", "ab")...)
		seekToTime(t, e, sub, aBeginning())
		wantTexts(t, e, sub, "a", "ab")
		later := e.Subscription(t, topic, filtering("attributes:b"))
		seekToTime(t, e, later, aBeginning())
		wantTexts(t, e, later, "b", "ab")
	})
}
