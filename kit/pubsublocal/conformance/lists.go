package conformance

import (
	"context"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
)

func acrossProjects(t *testing.T, e *Env) {
	t.Run("subscription", func(t *testing.T) {
		topic := topicIn(t, e, elsewhere(e))
		sub := e.Subscription(t, topic)
		wantEqual(t, topic, subscriptionNow(t, e, sub).GetTopic(), "topic")
		e.Publish(t, topic, "", "m")
		e.Ack(t, sub, wantTexts(t, e, sub, "m")...)
	})
	t.Run("dead-letter topic", func(t *testing.T) {
		topic, dead := e.Topic(t), topicIn(t, e, elsewhere(e))
		deadSub := e.Subscription(t, dead)
		sub := e.Subscription(t, topic, deadTo(dead, 5))
		e.Publish(t, topic, "", "m")
		for range 5 {
			e.Nack(t, sub, wantTexts(t, e, sub, "m")...)
		}
		wantTexts(t, e, deadSub, "m")
	})
	t.Run("schema", func(t *testing.T) {
		schema := schemaIn(t, e, elsewhere(e))
		topic := e.Topic(t, func(p *pubsubpb.Topic) {
			p.SchemaSettings = &pubsubpb.SchemaSettings{Schema: schema, Encoding: pubsubpb.Encoding_JSON}
		})
		e.Publish(t, topic, "", `{"id":"1"}`)
		WantCode(t, errOf(publishOnce(t, e, topic, &pubsubpb.PubsubMessage{Data: []byte("no JSON")})), codes.InvalidArgument)
	})
}

// listsOf returns the calls that list the names in a project, by collection.
func listsOf(e *Env, project string) map[string]func(context.Context) ([]string, error) {
	return map[string]func(context.Context) ([]string, error){
		"topics": func(ctx context.Context) ([]string, error) {
			return namesOf(e.Topics.ListTopics(ctx, &pubsubpb.ListTopicsRequest{Project: project}, singleTry).All())
		},
		"subscriptions": func(ctx context.Context) ([]string, error) {
			return namesOf(e.Subs.ListSubscriptions(ctx, &pubsubpb.ListSubscriptionsRequest{Project: project}, singleTry).All())
		},
		"schemas": func(ctx context.Context) ([]string, error) {
			return namesOf(e.Schema.ListSchemas(ctx, &pubsubpb.ListSchemasRequest{Parent: project}, singleTry).All())
		},
	}
}

func namesOf[T interface{ GetName() string }](resources iter.Seq2[T, error]) (names []string, err error) {
	for r, err := range resources {
		if err != nil {
			return nil, err
		}
		names = append(names, r.GetName())
	}
	return names, nil
}

func lists(t *testing.T, e *Env) {
	// These projects have the same prefix, so that a server that only compares prefixes fails.
	project := elsewhere(e)
	want := map[string][]string{}
	for _, p := range []string{project, project + "x"} {
		for range 3 {
			topic := topicIn(t, e, p)
			sub := e.Subscription(t, topic, func(s *pubsubpb.Subscription) { s.Name = strings.Replace(s.GetName(), "/"+e.Project+"/", "/"+p+"/", 1) })
			if schema := schemaIn(t, e, p); p == project {
				want["topics"] = append(want["topics"], topic)
				want["subscriptions"] = append(want["subscriptions"], sub)
				want["schemas"] = append(want["schemas"], schema)
			}
		}
	}
	for collection, list := range listsOf(e, "projects/"+project) {
		got, err := list(t.Context())
		must(t, err)
		wantEqual(t, want[collection], slices.Sorted(slices.Values(got)), "%s", collection)
	}
}

func topicDeleted(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub, ordered := e.Subscription(t, topic), e.Subscription(t, topic, Ordered)
	e.Publish(t, topic, "k", "1", "2")
	outstanding := e.Pull(t, sub, 1)
	if len(outstanding) != 1 {
		t.Fatalf("got %d messages, want 1", len(outstanding))
	}
	deleteTopic(t, e, topic)
	for _, name := range []string{sub, ordered} {
		wantEqual(t, deletedTopic, subscriptionNow(t, e, name).GetTopic(), "topic")
	}
	e.Nack(t, sub, outstanding...)
	e.Ack(t, sub, wantTexts(t, e, sub, "1", "2")...)
	wantTexts(t, e, sub)
	wantTexts(t, e, ordered, "1", "2")
}

func topicCreatedAgain(t *testing.T, e *Env) {
	topic := e.Topic(t, func(p *pubsubpb.Topic) {
		p.Labels = map[string]string{"age": "old"}
		p.MessageRetentionDuration = durationpb.New(time.Hour)
	})
	old := e.Subscription(t, topic)
	e.Publish(t, topic, "", "old")
	deleteTopic(t, e, topic)
	again, err := e.Topics.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic, MessageRetentionDuration: durationpb.New(time.Hour)})
	must(t, err)
	if len(again.GetLabels()) != 0 {
		t.Errorf("got labels %v of the old topic", again.GetLabels())
	}
	wantEqual(t, deletedTopic, subscriptionNow(t, e, old).GetTopic(), "topic of the old subscription")
	sub := e.Subscription(t, topic)
	e.Publish(t, topic, "", "new")
	wantTexts(t, e, old, "old")
	seekToTime(t, e, sub, time.Now().Add(-time.Hour))
	wantTexts(t, e, sub, "new")
}

func subscriptionDeleted(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	stream := openRaw(t, e, sub)
	e.Publish(t, topic, "", "on the stream")
	stream.take(t, 1)
	idle := openRaw(t, e, sub)
	idle.settle(t)
	e.Publish(t, topic, "", "1", "2", "3")
	must(t, e.Subs.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: sub}))
	WantCode(t, stream.end(t), codes.NotFound)
	WantCode(t, idle.end(t), codes.NotFound)
	WantCode(t, errOf(e.Subs.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: sub, MaxMessages: 1}, singleTry)), codes.NotFound)
	WantCode(t, openRaw(t, e, sub).end(t), codes.NotFound)

	must(t, errOf(e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: sub, Topic: topic})))
	wantTexts(t, e, sub)
	e.Publish(t, topic, "", "new")
	wantTexts(t, e, sub, "new")
}
