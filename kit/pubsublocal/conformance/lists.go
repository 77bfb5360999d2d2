package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
)

func acrossProjects(t *testing.T, e *Env) {
	t.Run("subscription", func(t *testing.T) {
		topic := topicIn(t, e, elsewhere(e))
		sub := e.Subscription(t, topic)
		if got := subscriptionNow(t, e, sub).GetTopic(); got != topic {
			t.Errorf("got topic %q, want %q", got, topic)
		}
		e.Publish(t, topic, "", "m")
		e.Ack(t, sub, wantTexts(t, e, sub, "m")...)
	})
	t.Run("dead-letter topic", func(t *testing.T) {
		topic, dead := e.Topic(t), topicIn(t, e, elsewhere(e))
		deadSub := e.Subscription(t, dead)
		sub := e.Subscription(t, topic, func(s *pubsubpb.Subscription) {
			s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: dead, MaxDeliveryAttempts: 5}
		})
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
		_, err := publishOnce(t, e, topic, &pubsubpb.PubsubMessage{Data: []byte("no JSON")})
		WantCode(t, err, codes.InvalidArgument)
	})
}

// listCall is a call that lists names.
type listCall struct {
	page       func(ctx context.Context, size int32, token string) (names []string, next string, err error)
	name       string
	collection string
	ofTopic    bool
}

func listsOf(e *Env, project, topic string) []listCall {
	return []listCall{
		{collection: "topics", name: "ListTopics", page: func(ctx context.Context, size int32, token string) ([]string, string, error) {
			it := e.Topics.ListTopics(ctx, &pubsubpb.ListTopicsRequest{Project: project, PageSize: size, PageToken: token}, singleTry)
			if _, err := it.Next(); err != nil && !errors.Is(err, iterator.Done) {
				return nil, "", err
			}
			r, _ := it.Response.(*pubsubpb.ListTopicsResponse)
			return namesOf(r.GetTopics()), r.GetNextPageToken(), nil
		}},
		{collection: "subscriptions", name: "ListSubscriptions", page: func(
			ctx context.Context, size int32, token string,
		) ([]string, string, error) {
			it := e.Subs.ListSubscriptions(ctx, &pubsubpb.ListSubscriptionsRequest{
				Project: project, PageSize: size, PageToken: token,
			}, singleTry)
			if _, err := it.Next(); err != nil && !errors.Is(err, iterator.Done) {
				return nil, "", err
			}
			r, _ := it.Response.(*pubsubpb.ListSubscriptionsResponse)
			return namesOf(r.GetSubscriptions()), r.GetNextPageToken(), nil
		}},
		{collection: "snapshots", name: "ListSnapshots", page: func(ctx context.Context, size int32, token string) ([]string, string, error) {
			it := e.Subs.ListSnapshots(ctx, &pubsubpb.ListSnapshotsRequest{Project: project, PageSize: size, PageToken: token}, singleTry)
			if _, err := it.Next(); err != nil && !errors.Is(err, iterator.Done) {
				return nil, "", err
			}
			r, _ := it.Response.(*pubsubpb.ListSnapshotsResponse)
			return namesOf(r.GetSnapshots()), r.GetNextPageToken(), nil
		}},
		{collection: "schemas", name: "ListSchemas", page: func(ctx context.Context, size int32, token string) ([]string, string, error) {
			it := e.Schema.ListSchemas(ctx, &pubsubpb.ListSchemasRequest{Parent: project, PageSize: size, PageToken: token}, singleTry)
			if _, err := it.Next(); err != nil && !errors.Is(err, iterator.Done) {
				return nil, "", err
			}
			r, _ := it.Response.(*pubsubpb.ListSchemasResponse)
			return namesOf(r.GetSchemas()), r.GetNextPageToken(), nil
		}},
		{collection: "subscriptions", name: "ListTopicSubscriptions", ofTopic: true, page: func(
			ctx context.Context, size int32, token string,
		) ([]string, string, error) {
			it := e.Topics.ListTopicSubscriptions(ctx, &pubsubpb.ListTopicSubscriptionsRequest{
				Topic: topic, PageSize: size, PageToken: token,
			}, singleTry)
			if _, err := it.Next(); err != nil && !errors.Is(err, iterator.Done) {
				return nil, "", err
			}
			r, _ := it.Response.(*pubsubpb.ListTopicSubscriptionsResponse)
			return r.GetSubscriptions(), r.GetNextPageToken(), nil
		}},
		{collection: "snapshots", name: "ListTopicSnapshots", ofTopic: true, page: func(
			ctx context.Context, size int32, token string,
		) ([]string, string, error) {
			it := e.Topics.ListTopicSnapshots(ctx, &pubsubpb.ListTopicSnapshotsRequest{
				Topic: topic, PageSize: size, PageToken: token,
			}, singleTry)
			if _, err := it.Next(); err != nil && !errors.Is(err, iterator.Done) {
				return nil, "", err
			}
			r, _ := it.Response.(*pubsubpb.ListTopicSnapshotsResponse)
			return r.GetSnapshots(), r.GetNextPageToken(), nil
		}},
	}
}

func namesOf[T interface{ GetName() string }](resources []T) (names []string) {
	for _, r := range resources {
		names = append(names, r.GetName())
	}
	return names
}

// populate creates n resources of each kind in a project, not in the order of their names. Those with a
// topic are all on the first one.
func populate(t *testing.T, e *Env, project string, n int) map[string][]string {
	t.Helper()
	made := map[string][]string{}
	name := func(collection string, i int) string {
		return fmt.Sprintf("projects/%s/%s/list-%d", project, collection, (i*7)%n+1000)
	}
	for i := range n {
		topic, sub, snapshot, schema := name("topics", i), name("subscriptions", i), name("snapshots", i), name("schemas", i)
		if _, err := e.Topics.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic}); err != nil {
			t.Fatal(err)
		}
		made["topics"] = append(made["topics"], topic)
		if _, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: sub, Topic: made["topics"][0]}); err != nil {
			t.Fatal(err)
		}
		made["subscriptions"] = append(made["subscriptions"], sub)
		if _, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{Name: snapshot, Subscription: sub}); err != nil {
			t.Fatal(err)
		}
		made["snapshots"] = append(made["snapshots"], snapshot)
		parent, id, _ := strings.Cut(schema, "/schemas/")
		if _, err := e.Schema.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{
			Parent: parent, SchemaId: id, Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: firstRevision},
		}); err != nil {
			t.Fatal(err)
		}
		made["schemas"] = append(made["schemas"], schema)
	}
	return made
}

func listPages(t *testing.T, e *Env) {
	// These projects have the same prefix, so that a server that only compares prefixes fails.
	project := elsewhere(e)
	made := populate(t, e, project, 5)
	populate(t, e, project+"x", 3)
	// Another topic with resources, which must not be in the lists of the first one.
	other := topicIn(t, e, project+"x")
	otherSub := e.Subscription(t, other)
	snapshotOf(t, e, otherSub)
	for _, list := range listsOf(e, "projects/"+project, made["topics"][0]) {
		want := slices.Sorted(slices.Values(made[list.collection]))
		for _, size := range []int32{1, 2, 5, 1000} {
			t.Run(fmt.Sprintf("%s/%d", list.name, size), func(t *testing.T) {
				var got []string
				token := ""
				for range len(want) + 2 {
					page, next, err := list.page(t.Context(), size, token)
					if err != nil {
						t.Fatal(err)
					}
					if len(page) > int(size) {
						t.Errorf("got %d names in a page of %d", len(page), size)
					}
					got = append(got, page...)
					if token = next; token == "" {
						break
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("all pages (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func listTokens(t *testing.T, e *Env) {
	project := elsewhere(e)
	made := populate(t, e, project, 101)
	for _, list := range listsOf(e, "projects/"+project, made["topics"][0]) {
		t.Run(list.name, func(t *testing.T) {
			page, next, err := list.page(t.Context(), 0, "")
			if err != nil {
				t.Fatal(err)
			}
			if len(page) != 100 || next == "" {
				t.Fatalf("got %d names and token %q, want 100 and a token", len(page), next)
			}
			page, last, err := list.page(t.Context(), 0, next)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) != 1 || last != "" {
				t.Errorf("got %d names and token %q at the end, want 1 and no token", len(page), last)
			}
			page, last, err = list.page(t.Context(), 101, "")
			if err != nil {
				t.Fatal(err)
			}
			if len(page) != 101 || last != "" {
				t.Errorf("got %d names and token %q in a page of 101, want 101 and no token", len(page), last)
			}
			for _, token := range []string{"no-token", next + "x", "100"} {
				_, _, err = list.page(t.Context(), 0, token)
				WantCode(t, err, codes.InvalidArgument)
			}
			_, _, err = list.page(t.Context(), -1, "")
			WantCode(t, err, codes.InvalidArgument)
		})
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
	if err := e.Topics.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: topic}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{sub, ordered} {
		if got := subscriptionNow(t, e, name).GetTopic(); got != deletedTopic {
			t.Errorf("got topic %q, want %q", got, deletedTopic)
		}
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
	if err := e.Topics.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: topic}); err != nil {
		t.Fatal(err)
	}
	again, err := e.Topics.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic, MessageRetentionDuration: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if len(again.GetLabels()) != 0 {
		t.Errorf("got labels %v of the old topic", again.GetLabels())
	}
	if got := subscriptionNow(t, e, old).GetTopic(); got != deletedTopic {
		t.Errorf("the old subscription has topic %q, want %q", got, deletedTopic)
	}
	for _, list := range listsOf(e, "", topic) {
		if list.ofTopic {
			got, _, err := list.page(t.Context(), 0, "")
			if err != nil || len(got) != 0 {
				t.Errorf("%s: got %v, %v, want none", list.name, got, err)
			}
		}
	}
	sub := e.Subscription(t, topic)
	e.Publish(t, topic, "", "new")
	wantTexts(t, e, old, "old")
	seekToTime(t, e, sub, time.Now().Add(-time.Hour))
	wantTexts(t, e, sub, "new")
}

func subscriptionDeleted(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	stream := streamFrom(t, e, sub)
	e.Publish(t, topic, "", "on the stream")
	nextMessages(t, stream)
	idle := streamFrom(t, e, sub)
	e.Publish(t, topic, "", "1", "2", "3")
	if err := e.Subs.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: sub}); err != nil {
		t.Fatal(err)
	}
	WantCode(t, endOf(t, stream), codes.NotFound)
	WantCode(t, endOf(t, idle), codes.NotFound)
	_, err := e.Subs.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: sub, MaxMessages: 1}, singleTry)
	WantCode(t, err, codes.NotFound)
	WantCode(t, endOf(t, streamFrom(t, e, sub)), codes.NotFound)

	if _, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: sub, Topic: topic}); err != nil {
		t.Fatal(err)
	}
	wantTexts(t, e, sub)
	e.Publish(t, topic, "", "new")
	wantTexts(t, e, sub, "new")
}
