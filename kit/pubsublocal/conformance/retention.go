package conformance

import (
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
)

var topicRetention = []Case{
	{ID: "C1", Sentence: "A topic keeps messages for 10 minutes to 31 days, or not at all.", Run: topicRetentionLimits},
	{ID: "C2", Sentence: "What the topic keeps is there for every subscription, also acknowledged.", Clock: true, Run: topicKeeps},
	{ID: "C3", Sentence: "A later subscription gets kept messages only when it seeks, and then from that time on.", Run: topicKeepsForLater},
	{ID: "C4", Sentence: "A subscription shows the retention of its topic, and cannot set it.", Run: topicRetentionShown},
	{ID: "C5", Sentence: "A message older than every retention is dropped.", Clock: true, Run: pastEveryRetention},
	{ID: "C6", Sentence: "A shorter retention drops what it no longer covers; a longer one brings nothing back.", Clock: true,
		Run: topicRetentionChanged},
}

// keeping sets the retention of a topic.
func keeping(d time.Duration) func(*pubsubpb.Topic) {
	return func(p *pubsubpb.Topic) { p.MessageRetentionDuration = durationpb.New(d) }
}

// retaining sets the retention of a subscription.
func retaining(d time.Duration) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) { s.MessageRetentionDuration = durationpb.New(d) }
}

func retainingAcked(s *pubsubpb.Subscription) { s.RetainAckedMessages = true }

// aBeginning returns a time before every message, whatever the clock of the server says.
func aBeginning() time.Time { return time.Now().Add(-1000 * time.Hour) }

func topicRetentionLimits(t *testing.T, e *Env) {
	existing := e.Topic(t)
	tests := []struct {
		name string
		d    time.Duration
		want codes.Code
	}{
		{"10 minutes", 10 * time.Minute, codes.OK},
		{"31 days", 31 * day, codes.OK},
		{"a bit less than 10 minutes", 10*time.Minute - time.Second, codes.InvalidArgument},
		{"a bit more than 31 days", 31*day + time.Second, codes.InvalidArgument},
		{"negative", -time.Hour, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run("create/"+test.name, func(t *testing.T) {
			topic, err := e.Topics.CreateTopic(t.Context(), &pubsubpb.Topic{
				Name: e.Name("topics"), MessageRetentionDuration: durationpb.New(test.d),
			}, singleTry)
			WantCode(t, err, test.want)
			if got := topic.GetMessageRetentionDuration().AsDuration(); err == nil && got != test.d {
				t.Errorf("got %v, want %v", got, test.d)
			}
		})
		t.Run("update/"+test.name, func(t *testing.T) {
			_, err := topicUpdate(t, e, &pubsubpb.Topic{
				Name: existing, MessageRetentionDuration: durationpb.New(test.d),
			}, "message_retention_duration")
			WantCode(t, err, test.want)
			if got := topicNow(t, e, existing).GetMessageRetentionDuration().AsDuration(); err == nil && got != test.d {
				t.Errorf("got %v, want %v", got, test.d)
			}
		})
	}
	t.Run("unset", func(t *testing.T) {
		topic := e.Topic(t)
		if got := topicNow(t, e, topic).GetMessageRetentionDuration(); got != nil {
			t.Errorf("got %v, want none", got)
		}
		sub := e.Subscription(t, topic)
		e.Publish(t, topic, "", "m")
		e.Ack(t, sub, wantTexts(t, e, sub, "m")...)
		seekToTime(t, e, sub, aBeginning())
		wantTexts(t, e, sub)
	})
}

func topicKeeps(t *testing.T, e *Env) {
	topic := e.Topic(t, keeping(time.Hour))
	// These subscriptions retain messages for less time than the topic.
	first, second := e.Subscription(t, topic, retaining(10*time.Minute)), e.Subscription(t, topic, retaining(10*time.Minute))
	e.Publish(t, topic, "", "1", "2")
	e.Ack(t, first, wantTexts(t, e, first, "1", "2")...)
	seekToTime(t, e, first, aBeginning())
	e.Ack(t, first, wantTexts(t, e, first, "1", "2")...)
	e.Ack(t, second, e.Pull(t, second, 1)...) // one of the two messages
	e.Advance(50 * time.Minute)
	for _, sub := range []string{first, second} {
		seekToTime(t, e, sub, aBeginning())
		wantTexts(t, e, sub, "1", "2")
	}
}

func topicKeepsForLater(t *testing.T, e *Env) {
	topic := e.Topic(t, keeping(time.Hour))
	witness := e.Subscription(t, topic)
	for _, text := range []string{"1", "2", "3"} {
		e.Publish(t, topic, "", text)
		time.Sleep(20 * time.Millisecond) // publish times are in milliseconds
	}
	times := map[string]time.Time{}
	for _, m := range wantTexts(t, e, witness, "1", "2", "3") {
		times[string(m.GetMessage().GetData())] = m.GetMessage().GetPublishTime().AsTime()
	}
	sub := e.Subscription(t, topic)
	wantTexts(t, e, sub)
	seekToTime(t, e, sub, times["2"])
	wantTexts(t, e, sub, "2", "3")
	seekToTime(t, e, sub, times["2"].Add(time.Millisecond))
	wantTexts(t, e, sub, "3")
	seekToTime(t, e, sub, aBeginning())
	e.Ack(t, sub, wantTexts(t, e, sub, "1", "2", "3")...)
	e.Publish(t, topic, "", "4")
	wantTexts(t, e, sub, "4")
}

func topicRetentionShown(t *testing.T, e *Env) {
	topic := e.Topic(t, keeping(time.Hour))
	created, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name: e.Name("subscriptions"), Topic: topic, TopicMessageRetentionDuration: durationpb.New(5 * time.Hour),
	}, singleTry)
	must(t, err)
	wantEqual(t, time.Hour, created.GetTopicMessageRetentionDuration().AsDuration(), "retention from CreateSubscription")
	shown := func() time.Duration {
		return subscriptionNow(t, e, created.GetName()).GetTopicMessageRetentionDuration().AsDuration()
	}
	wantEqual(t, time.Hour, shown(), "retention")
	updated, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{
		Name: created.GetName(), AckDeadlineSeconds: 20, TopicMessageRetentionDuration: durationpb.New(5 * time.Hour),
	}, "ack_deadline_seconds")
	must(t, err)
	wantEqual(t, time.Hour, updated.GetTopicMessageRetentionDuration().AsDuration(), "retention from UpdateSubscription")
	for _, want := range []time.Duration{2 * time.Hour, 0, 3 * time.Hour} {
		body := &pubsubpb.Topic{Name: topic}
		if want != 0 {
			body.MessageRetentionDuration = durationpb.New(want)
		}
		must(t, errOf(topicUpdate(t, e, body, "message_retention_duration")))
		wantEqual(t, want, shown(), "retention after the topic was updated")
	}
	without := e.Subscription(t, e.Topic(t), func(s *pubsubpb.Subscription) {
		s.TopicMessageRetentionDuration = durationpb.New(5 * time.Hour)
	})
	if got := subscriptionNow(t, e, without).GetTopicMessageRetentionDuration(); got != nil {
		t.Errorf("got %v on a topic without retention, want none", got.AsDuration())
	}
}

func pastEveryRetention(t *testing.T, e *Env) {
	kept, plain := e.Topic(t, keeping(30*time.Minute)), e.Topic(t)
	shorter := e.Subscription(t, kept, retaining(10*time.Minute))
	longer := e.Subscription(t, kept, retaining(time.Hour))
	acked := e.Subscription(t, kept, retaining(time.Hour), retainingAcked)
	alone := e.Subscription(t, plain, retaining(10*time.Minute))
	e.Publish(t, kept, "", "m")
	e.Publish(t, plain, "", "m")
	e.Ack(t, acked, wantTexts(t, e, acked, "m")...)

	e.Advance(20 * time.Minute)
	wantTexts(t, e, alone)
	seekToTime(t, e, alone, aBeginning())
	wantTexts(t, e, alone)
	seekToTime(t, e, shorter, aBeginning()) // the topic still retains it
	wantTexts(t, e, shorter, "m")

	e.Advance(20 * time.Minute) // 30 minutes are over
	wantTexts(t, e, shorter)
	seekToTime(t, e, shorter, aBeginning())
	wantTexts(t, e, shorter)
	fresh := e.Subscription(t, kept)
	seekToTime(t, e, fresh, aBeginning())
	wantTexts(t, e, fresh)
	wantTexts(t, e, longer, "m") // its own retention is longer
	seekToTime(t, e, acked, aBeginning())
	e.Ack(t, acked, wantTexts(t, e, acked, "m")...)

	e.Advance(30 * time.Minute) // an hour is over
	for _, sub := range []string{longer, acked} {
		wantTexts(t, e, sub)
		seekToTime(t, e, sub, aBeginning())
		wantTexts(t, e, sub)
	}
}

func topicRetentionChanged(t *testing.T, e *Env) {
	topic := e.Topic(t, keeping(time.Hour))
	// A new subscription each time, because a seek makes the messages part of the backlog.
	wantKept := func(want ...string) {
		t.Helper()
		sub := e.Subscription(t, topic)
		seekToTime(t, e, sub, aBeginning())
		wantTexts(t, e, sub, want...)
		must(t, e.Subs.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: sub}))
	}
	change := func(body *pubsubpb.Topic) {
		t.Helper()
		body.Name = topic
		must(t, errOf(topicUpdate(t, e, body, "message_retention_duration")))
	}
	e.Publish(t, topic, "", "1")
	e.Advance(20 * time.Minute)
	e.Publish(t, topic, "", "2")
	wantKept("1", "2")
	change(&pubsubpb.Topic{MessageRetentionDuration: durationpb.New(10 * time.Minute)})
	wantKept("2")
	change(&pubsubpb.Topic{MessageRetentionDuration: durationpb.New(time.Hour)})
	wantKept("2")
	e.Advance(20 * time.Minute) // the longer retention applies to messages that still exist
	wantKept("2")
	// Message 2 must be dropped at once, not only by the next call.
	e.Publish(t, topic, "", "3")
	change(&pubsubpb.Topic{MessageRetentionDuration: durationpb.New(10 * time.Minute)})
	change(&pubsubpb.Topic{MessageRetentionDuration: durationpb.New(time.Hour)})
	wantKept("3")
	change(&pubsubpb.Topic{})
	change(&pubsubpb.Topic{MessageRetentionDuration: durationpb.New(time.Hour)})
	wantKept()
	e.Publish(t, topic, "", "4")
	wantKept("4")
	change(&pubsubpb.Topic{})
	wantKept()
}
