package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var names = []Case{
	{ID: "A1", Sentence: "An id starts with a letter and has 3 to 255 characters out of letters, digits and -_.~+%.", Run: idCharacters},
	{ID: "A2", Sentence: "An id that starts with goog is refused.", Run: idsOfGoogle},
	{ID: "A3", Sentence: "A name that is not projects/{project}/{collection}/{id} is refused, as a reference too.", Run: malformedNames},
	{ID: "A4", Sentence: "Creating what exists is ALREADY_EXISTS, whatever else is wrong.", Run: createTwice},
	{ID: "A5", Sentence: "A call on what is missing is NOT_FOUND.", Run: missingResources},
	{ID: "A6", Sentence: "A subscription needs a topic that exists, and a name of one.", Run: subscriptionWithoutTopic},
	{ID: "A7", Sentence: "A subscription or snapshot without a name gets one, in the project of its topic or subscription.", Run: madeNames},
	{ID: "A8", Sentence: "Subscription, topic, dead-letter topic and schema may live in different projects.", Run: acrossProjects},
	{ID: "A9", Sentence: "Lists have only what was asked for, by name, in pages no longer than asked, each resource once.", Run: listPages},
	{ID: "A10", Sentence: "Lists refuse foreign page tokens and negative sizes; 0 is 100; the last page has no token.", Run: listTokens},
	{ID: "A11", Sentence: "A deleted topic leaves its subscriptions with their backlog.", Run: topicDeleted},
	{ID: "A12", Sentence: "A topic created again is a new one.", Run: topicCreatedAgain},
	{ID: "A13", Sentence: "A deleted subscription drops its messages and ends its streams; its name may begin anew.", Run: subscriptionDeleted},
	{ID: "A14", Sentence: "An update needs a mask with paths.", Run: updateWithoutMask},
	{ID: "A15", Sentence: "An update refuses unknown paths, and over gRPC those in camelCase.", Run: updateUnknownPath},
	{ID: "A16", Sentence: "A path in the mask without a value in the body resets the field to its default.", Run: updateResets},
	{ID: "A17", Sentence: "An update of an immutable or output-only field of a subscription is refused.", Run: updateImmutable},
	{ID: "A18", Sentence: "The other fields of a subscription can be updated, each alone.", Run: updateSubscriptionFields},
	{ID: "A19", Sentence: "The fields of a topic but its name and key can be updated, each alone.", Run: updateTopicFields},
	{ID: "A20", Sentence: "Labels and expire time of a snapshot can be updated.", Run: updateSnapshotFields},
	{ID: "A21", Sentence: "An update applies as a whole or not at all.", Run: updateAllOrNothing},
	{ID: "A22", Sentence: "Labels have at most 64 short lower-case keys and values.", Run: labelRules},
}

const (
	deletedTopic   = "_deleted-topic_"
	day            = 24 * time.Hour
	firstRevision  = `syntax = "proto3"; message Event { string id = 1; }`
	secondRevision = `syntax = "proto3"; message Event { string id = 1; string note = 2; }`
)

// singleTry is for calls that shall fail: the client would repeat some of them for a minute.
var singleTry = gax.WithRetry(func() gax.Retryer { return nil })

// resourceKind is a kind of resource, with the calls that all kinds have.
type resourceKind struct {
	create, get, remove func(ctx context.Context, name string) error
	collection          string
}

// resourceKinds are all four kinds. What they create refers to one topic and one subscription.
func resourceKinds(t *testing.T, e *Env) []resourceKind {
	t.Helper()
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	return []resourceKind{{
		collection: "topics",
		create: func(ctx context.Context, name string) error {
			_, err := e.Topics.CreateTopic(ctx, &pubsubpb.Topic{Name: name}, singleTry)
			return err
		},
		get: func(ctx context.Context, name string) error {
			_, err := e.Topics.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: name}, singleTry)
			return err
		},
		remove: func(ctx context.Context, name string) error {
			return e.Topics.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: name}, singleTry)
		},
	}, {
		collection: "subscriptions",
		create: func(ctx context.Context, name string) error {
			_, err := e.Subs.CreateSubscription(ctx, &pubsubpb.Subscription{Name: name, Topic: topic}, singleTry)
			return err
		},
		get: func(ctx context.Context, name string) error {
			_, err := e.Subs.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: name}, singleTry)
			return err
		},
		remove: func(ctx context.Context, name string) error {
			return e.Subs.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: name}, singleTry)
		},
	}, {
		collection: "snapshots",
		create: func(ctx context.Context, name string) error {
			_, err := e.Subs.CreateSnapshot(ctx, &pubsubpb.CreateSnapshotRequest{Name: name, Subscription: sub}, singleTry)
			return err
		},
		get: func(ctx context.Context, name string) error {
			_, err := e.Subs.GetSnapshot(ctx, &pubsubpb.GetSnapshotRequest{Snapshot: name}, singleTry)
			return err
		},
		remove: func(ctx context.Context, name string) error {
			return e.Subs.DeleteSnapshot(ctx, &pubsubpb.DeleteSnapshotRequest{Snapshot: name}, singleTry)
		},
	}, {
		collection: "schemas",
		create: func(ctx context.Context, name string) error {
			parent, id, _ := strings.Cut(name, "/schemas/")
			_, err := e.Schema.CreateSchema(ctx, &pubsubpb.CreateSchemaRequest{
				Parent: parent, SchemaId: id,
				Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: firstRevision},
			}, singleTry)
			return err
		},
		get: func(ctx context.Context, name string) error {
			_, err := e.Schema.GetSchema(ctx, &pubsubpb.GetSchemaRequest{Name: name}, singleTry)
			return err
		},
		remove: func(ctx context.Context, name string) error {
			return e.Schema.DeleteSchema(ctx, &pubsubpb.DeleteSchemaRequest{Name: name}, singleTry)
		},
	}}
}

func idCharacters(t *testing.T, e *Env) {
	tests := []struct {
		name, id string
		want     codes.Code
	}{
		{"three characters", "a.b", codes.OK},
		{"255 characters", "a" + strings.Repeat("x", 254), codes.OK},
		{"all characters", "Zaz09-_.~+%", codes.OK},
		{"empty", "", codes.InvalidArgument},
		{"two characters", "ab", codes.InvalidArgument},
		{"256 characters", "a" + strings.Repeat("x", 255), codes.InvalidArgument},
		{"digit first", "1abc", codes.InvalidArgument},
		{"hyphen first", "-abc", codes.InvalidArgument},
		{"percent sign first", "%abc", codes.InvalidArgument},
		{"space", "ab c", codes.InvalidArgument},
		{"newline at the end", "abc\n", codes.InvalidArgument},
		{"exclamation mark", "abc!", codes.InvalidArgument},
		{"colon", "ab:c", codes.InvalidArgument},
		{"at sign", "abc@1", codes.InvalidArgument},
		{"letter beyond ASCII", "abcé", codes.InvalidArgument},
	}
	for _, kind := range resourceKinds(t, e) {
		for _, test := range tests {
			t.Run(kind.collection+"/"+test.name, func(t *testing.T) {
				name := fmt.Sprintf("projects/%s/%s/%s", e.Project, kind.collection, test.id)
				WantCode(t, kind.create(t.Context(), name), test.want)
				if test.want == codes.OK {
					WantCode(t, kind.get(t.Context(), name), codes.OK)
					WantCode(t, kind.remove(t.Context(), name), codes.OK)
				}
			})
		}
	}
}

func idsOfGoogle(t *testing.T, e *Env) {
	for _, kind := range resourceKinds(t, e) {
		for _, id := range []string{"goog", "google-events", "goog-1"} {
			t.Run(kind.collection+"/"+id, func(t *testing.T) {
				name := fmt.Sprintf("projects/%s/%s/%s", e.Project, kind.collection, id)
				WantCode(t, kind.create(t.Context(), name), codes.InvalidArgument)
			})
		}
		t.Run(kind.collection+"/inside", func(t *testing.T) {
			name := e.Name(kind.collection) + "-goog"
			WantCode(t, kind.create(t.Context(), name), codes.OK)
		})
	}
}

// malformed answers names that are none of this collection.
func malformed(e *Env, collection string) map[string]string {
	other := "topics"
	if collection == other {
		other = "subscriptions"
	}
	return map[string]string{
		"one word":               "x",
		"no id":                  fmt.Sprintf("projects/%s/%s", e.Project, collection),
		"empty project":          fmt.Sprintf("projects//%s/some-id", collection),
		"segment too many":       fmt.Sprintf("projects/%s/%s/some-id/more", e.Project, collection),
		"slash first":            fmt.Sprintf("/projects/%s/%s/some-id", e.Project, collection),
		"slash last":             fmt.Sprintf("projects/%s/%s/some-id/", e.Project, collection),
		"not in a project":       fmt.Sprintf("folders/%s/%s/some-id", e.Project, collection),
		"other collection":       fmt.Sprintf("projects/%s/%s/some-id", e.Project, other),
		"collection in capitals": fmt.Sprintf("projects/%s/%s/some-id", e.Project, strings.ToUpper(collection)),
	}
}

// nameCall is a call that needs something that exists.
type nameCall struct {
	do               func(ctx context.Context, name string) error
	name, collection string
}

// nameCalls are all calls with the name of something that exists, on existing other things.
func nameCalls(t *testing.T, e *Env) []nameCall {
	t.Helper()
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	e.Publish(t, topic, "", "m")
	ackIDs := AckIDs(collect(t, e, sub, 1))
	schemaSettings := func(name string) *pubsubpb.SchemaSettings {
		return &pubsubpb.SchemaSettings{Schema: name, Encoding: pubsubpb.Encoding_JSON}
	}
	var calls []nameCall
	for _, kind := range resourceKinds(t, e) {
		calls = append(calls, nameCall{kind.get, "get", kind.collection}, nameCall{kind.remove, "delete", kind.collection})
	}
	return append(calls,
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Topics.UpdateTopic(ctx, &pubsubpb.UpdateTopicRequest{
				Topic: &pubsubpb.Topic{Name: name}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			}, singleTry)
			return err
		}, "UpdateTopic", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Topics.Publish(ctx, &pubsubpb.PublishRequest{
				Topic: name, Messages: []*pubsubpb.PubsubMessage{{Data: []byte("x")}},
			}, singleTry)
			return err
		}, "Publish", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Topics.ListTopicSubscriptions(ctx, &pubsubpb.ListTopicSubscriptionsRequest{Topic: name}, singleTry).Next()
			return err
		}, "ListTopicSubscriptions", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Topics.ListTopicSnapshots(ctx, &pubsubpb.ListTopicSnapshotsRequest{Topic: name}, singleTry).Next()
			return err
		}, "ListTopicSnapshots", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.CreateSubscription(ctx, &pubsubpb.Subscription{Name: e.Name("subscriptions"), Topic: name}, singleTry)
			return err
		}, "topic of CreateSubscription", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.CreateSubscription(ctx, &pubsubpb.Subscription{
				Name: e.Name("subscriptions"), Topic: topic, DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: name},
			}, singleTry)
			return err
		}, "dead-letter topic of CreateSubscription", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{
				Subscription: &pubsubpb.Subscription{Name: sub, DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: name}},
				UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"dead_letter_policy"}},
			}, singleTry)
			return err
		}, "dead-letter topic of UpdateSubscription", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{
				Subscription: &pubsubpb.Subscription{Name: name}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			}, singleTry)
			return err
		}, "UpdateSubscription", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.Pull(ctx, &pubsubpb.PullRequest{Subscription: name, MaxMessages: 1}, singleTry)
			return err
		}, "Pull", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			return e.Subs.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: name, AckIds: ackIDs}, singleTry)
		}, "Acknowledge", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			return e.Subs.ModifyAckDeadline(ctx, &pubsubpb.ModifyAckDeadlineRequest{
				Subscription: name, AckIds: ackIDs, AckDeadlineSeconds: 20,
			}, singleTry)
		}, "ModifyAckDeadline", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			return e.Subs.ModifyPushConfig(ctx, &pubsubpb.ModifyPushConfigRequest{
				Subscription: name, PushConfig: &pubsubpb.PushConfig{},
			}, singleTry)
		}, "ModifyPushConfig", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.Seek(ctx, &pubsubpb.SeekRequest{
				Subscription: name, Target: &pubsubpb.SeekRequest_Time{Time: timestamppb.Now()},
			}, singleTry)
			return err
		}, "Seek", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Topics.DetachSubscription(ctx, &pubsubpb.DetachSubscriptionRequest{Subscription: name}, singleTry)
			return err
		}, "DetachSubscription", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.CreateSnapshot(ctx, &pubsubpb.CreateSnapshotRequest{Name: e.Name("snapshots"), Subscription: name}, singleTry)
			return err
		}, "subscription of CreateSnapshot", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.Seek(ctx, &pubsubpb.SeekRequest{
				Subscription: sub, Target: &pubsubpb.SeekRequest_Snapshot{Snapshot: name},
			}, singleTry)
			return err
		}, "snapshot of Seek", "snapshots"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Subs.UpdateSnapshot(ctx, &pubsubpb.UpdateSnapshotRequest{
				Snapshot: &pubsubpb.Snapshot{Name: name}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			}, singleTry)
			return err
		}, "UpdateSnapshot", "snapshots"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Topics.CreateTopic(ctx, &pubsubpb.Topic{Name: e.Name("topics"), SchemaSettings: schemaSettings(name)}, singleTry)
			return err
		}, "schema of CreateTopic", "schemas"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Topics.UpdateTopic(ctx, &pubsubpb.UpdateTopicRequest{
				Topic:      &pubsubpb.Topic{Name: topic, SchemaSettings: schemaSettings(name)},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"schema_settings"}},
			}, singleTry)
			return err
		}, "schema of UpdateTopic", "schemas"},
		nameCall{func(ctx context.Context, name string) error {
			_, err := e.Schema.CommitSchema(ctx, &pubsubpb.CommitSchemaRequest{
				Name:   name,
				Schema: &pubsubpb.Schema{Name: name, Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: firstRevision},
			}, singleTry)
			return err
		}, "CommitSchema", "schemas"},
	)
}

func malformedNames(t *testing.T, e *Env) {
	calls := nameCalls(t, e)
	for _, kind := range resourceKinds(t, e) {
		if kind.collection != "schemas" { // their name comes in two parts, below
			calls = append(calls, nameCall{kind.create, "create", kind.collection})
		}
	}
	for _, call := range calls {
		bad := malformed(e, call.collection)
		for _, what := range slices.Sorted(maps.Keys(bad)) {
			t.Run(call.name+"/"+call.collection+"/"+what, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				WantCode(t, call.do(ctx, bad[what]), codes.InvalidArgument)
			})
		}
	}
	topic := e.Topic(t)
	for what, parent := range map[string]string{
		"one word": "x", "empty": "", "no project": "projects/", "slash last": "projects/" + e.Project + "/", "topic": topic,
	} {
		for _, list := range listsOf(e, parent, parent) {
			if list.ofTopic {
				continue // above, as the name of a topic
			}
			t.Run("parent/"+list.name+"/"+what, func(t *testing.T) {
				_, _, err := list.page(t.Context(), 0, "")
				WantCode(t, err, codes.InvalidArgument)
			})
		}
		t.Run("parent/CreateSchema/"+what, func(t *testing.T) {
			_, err := e.Schema.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{
				Parent: parent, SchemaId: "some-id",
				Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: firstRevision},
			}, singleTry)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
}

func createTwice(t *testing.T, e *Env) {
	for _, kind := range resourceKinds(t, e) {
		t.Run(kind.collection, func(t *testing.T) {
			name := e.Name(kind.collection)
			WantCode(t, kind.create(t.Context(), name), codes.OK)
			WantCode(t, kind.create(t.Context(), name), codes.AlreadyExists)
		})
	}
	topic := e.Topic(t, func(p *pubsubpb.Topic) { p.Labels = map[string]string{"round": "1"} })
	sub := e.Subscription(t, topic)
	snapshot := snapshotOf(t, e, sub)
	schema := schemaIn(t, e, e.Project)
	topicBefore, subBefore := topicNow(t, e, topic), subscriptionNow(t, e, sub)
	missing := e.Name("topics")

	for name, body := range map[string]*pubsubpb.Topic{
		"other labels":       {Labels: map[string]string{"round": "2"}},
		"bad label":          {Labels: map[string]string{"Round": "2"}},
		"retention too long": {MessageRetentionDuration: durationpb.New(32 * day)},
		"missing schema": {SchemaSettings: &pubsubpb.SchemaSettings{
			Schema: e.Name("schemas"), Encoding: pubsubpb.Encoding_JSON,
		}},
	} {
		t.Run("topic/"+name, func(t *testing.T) {
			body.Name = topic
			_, err := e.Topics.CreateTopic(t.Context(), body, singleTry)
			WantCode(t, err, codes.AlreadyExists)
		})
	}
	for name, body := range map[string]*pubsubpb.Subscription{
		"other labels":              {Topic: topic, Labels: map[string]string{"round": "2"}},
		"missing topic":             {Topic: missing},
		"bad deadline":              {Topic: topic, AckDeadlineSeconds: 5},
		"bad filter":                {Topic: topic, Filter: "AND"},
		"missing dead-letter topic": {Topic: topic, DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: missing}},
	} {
		t.Run("subscription/"+name, func(t *testing.T) {
			body.Name = sub
			_, err := e.Subs.CreateSubscription(t.Context(), body, singleTry)
			WantCode(t, err, codes.AlreadyExists)
		})
	}
	t.Run("snapshot/missing subscription", func(t *testing.T) {
		_, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{
			Name: snapshot, Subscription: e.Name("subscriptions"),
		}, singleTry)
		WantCode(t, err, codes.AlreadyExists)
	})
	t.Run("schema/bad definition", func(t *testing.T) {
		parent, id, _ := strings.Cut(schema, "/schemas/")
		_, err := e.Schema.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{
			Parent: parent, SchemaId: id,
			Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: "no definition"},
		}, singleTry)
		WantCode(t, err, codes.AlreadyExists)
	})
	t.Run("a bad name comes first", func(t *testing.T) {
		_, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: sub + "/", Topic: missing}, singleTry)
		WantCode(t, err, codes.InvalidArgument)
	})
	if diff := cmp.Diff(topicBefore, topicNow(t, e, topic), protocmp.Transform()); diff != "" {
		t.Errorf("the topic changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(subBefore, subscriptionNow(t, e, sub), protocmp.Transform()); diff != "" {
		t.Errorf("the subscription changed (-before +after):\n%s", diff)
	}
}

func missingResources(t *testing.T, e *Env) {
	deleted := map[string]string{}
	for _, kind := range resourceKinds(t, e) {
		name := e.Name(kind.collection)
		WantCode(t, kind.create(t.Context(), name), codes.OK)
		WantCode(t, kind.remove(t.Context(), name), codes.OK)
		deleted[kind.collection] = name
	}
	for _, call := range nameCalls(t, e) {
		for what, name := range map[string]string{"never created": e.Name(call.collection), "deleted": deleted[call.collection]} {
			t.Run(call.name+"/"+call.collection+"/"+what, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				WantCode(t, call.do(ctx, name), codes.NotFound)
			})
		}
	}
}

func subscriptionWithoutTopic(t *testing.T, e *Env) {
	gone := e.Topic(t)
	if err := e.Topics.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: gone}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, topic string
		want        codes.Code
	}{
		{"missing", e.Name("topics"), codes.NotFound},
		{"deleted", gone, codes.NotFound},
		{"empty", "", codes.InvalidArgument},
		{"malformed", "x", codes.InvalidArgument},
		{"subscription", e.Name("subscriptions"), codes.InvalidArgument},
		{"mark of a deleted topic", deletedTopic, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := e.Name("subscriptions")
			_, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: name, Topic: test.topic}, singleTry)
			WantCode(t, err, test.want)
			_, err = e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: name}, singleTry)
			WantCode(t, err, codes.NotFound)
		})
	}
}

func madeNames(t *testing.T, e *Env) {
	topics := map[string]string{e.Project: e.Topic(t), elsewhere(e): topicIn(t, e, elsewhere(e))}
	for project, topic := range topics {
		valid := func(t *testing.T, name, collection string) {
			t.Helper()
			pattern := "^projects/" + regexp.QuoteMeta(project) + "/" + collection + "/[A-Za-z][A-Za-z0-9_.~+%-]{2,254}$"
			if ok, err := regexp.MatchString(pattern, name); err != nil || !ok || strings.Contains(name, "/goog") {
				t.Errorf("got name %q, want a valid one in %s of project %s (%v)", name, collection, project, err)
			}
		}
		t.Run("subscription/"+project, func(t *testing.T) {
			var made []string
			for range 2 {
				sub, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Topic: topic}, singleTry)
				if err != nil {
					t.Fatal(err)
				}
				valid(t, sub.GetName(), "subscriptions")
				subscriptionNow(t, e, sub.GetName())
				made = append(made, sub.GetName())
			}
			if made[0] == made[1] {
				t.Errorf("got %q twice", made[0])
			}
		})
		t.Run("snapshot/"+project, func(t *testing.T) {
			sub := fmt.Sprintf("projects/%s/subscriptions/for-snapshots", project)
			if _, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: sub, Topic: topics[e.Project]}); err != nil {
				t.Fatal(err)
			}
			var made []string
			for range 2 {
				snapshot, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{Subscription: sub}, singleTry)
				if err != nil {
					t.Fatal(err)
				}
				valid(t, snapshot.GetName(), "snapshots")
				snapshotNow(t, e, snapshot.GetName())
				made = append(made, snapshot.GetName())
			}
			if made[0] == made[1] {
				t.Errorf("got %q twice", made[0])
			}
		})
	}
}

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

// populate creates n resources of each kind in a project, those with a topic all on the first one. They are
// not created in the order of their names.
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
	// Projects of this case alone: their names begin alike, so that a server which only compares beginnings shows.
	project := elsewhere(e)
	made := populate(t, e, project, 5)
	populate(t, e, project+"x", 3)
	// More on another topic: the list of the first one does not have them.
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

func updateWithoutMask(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	snapshot := snapshotOf(t, e, sub)
	labels := map[string]string{"a": "b"}
	for name, mask := range map[string]*fieldmaskpb.FieldMask{"none": nil, "empty": {}} {
		t.Run("topic/"+name, func(t *testing.T) {
			_, err := e.Topics.UpdateTopic(t.Context(), &pubsubpb.UpdateTopicRequest{
				Topic: &pubsubpb.Topic{Name: topic, Labels: labels}, UpdateMask: mask,
			}, singleTry)
			WantCode(t, err, codes.InvalidArgument)
		})
		t.Run("subscription/"+name, func(t *testing.T) {
			_, err := e.Subs.UpdateSubscription(t.Context(), &pubsubpb.UpdateSubscriptionRequest{
				Subscription: &pubsubpb.Subscription{Name: sub, Labels: labels}, UpdateMask: mask,
			}, singleTry)
			WantCode(t, err, codes.InvalidArgument)
		})
		t.Run("snapshot/"+name, func(t *testing.T) {
			_, err := e.Subs.UpdateSnapshot(t.Context(), &pubsubpb.UpdateSnapshotRequest{
				Snapshot: &pubsubpb.Snapshot{Name: snapshot, Labels: labels}, UpdateMask: mask,
			}, singleTry)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
	wantNoLabels(t, e, topic, sub, snapshot)
}

func updateUnknownPath(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	snapshot := snapshotOf(t, e, sub)
	labels := map[string]string{"a": "b"}
	for _, path := range []string{"nonsense", "Labels", "messageRetentionDuration", "schema_settings.nonsense", ""} {
		t.Run("topic/"+path, func(t *testing.T) {
			_, err := topicUpdate(t, e, &pubsubpb.Topic{Name: topic, Labels: labels}, path)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
	for _, path := range []string{"nonsense", "Labels", "pushConfig", "ackDeadlineSeconds", ""} {
		t.Run("subscription/"+path, func(t *testing.T) {
			_, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{Name: sub, Labels: labels, AckDeadlineSeconds: 20}, path)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
	for _, path := range []string{"nonsense", "Labels", "expireTime", ""} {
		t.Run("snapshot/"+path, func(t *testing.T) {
			_, err := snapshotUpdate(t, e, &pubsubpb.Snapshot{Name: snapshot, Labels: labels}, path)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
	wantNoLabels(t, e, topic, sub, snapshot)
	if got := subscriptionNow(t, e, sub).GetAckDeadlineSeconds(); got != 10 {
		t.Errorf("got ack deadline %d, want 10", got)
	}
}

func updateResets(t *testing.T, e *Env) {
	topic, dead := e.Topic(t), e.Topic(t)
	full := func(s *pubsubpb.Subscription) {
		s.AckDeadlineSeconds = 33
		s.RetainAckedMessages = true
		s.MessageRetentionDuration = durationpb.New(time.Hour)
		s.Labels = map[string]string{"a": "b"}
		s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(10 * day)}
		s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: dead, MaxDeliveryAttempts: 7}
		s.RetryPolicy = &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(time.Second), MaximumBackoff: durationpb.New(time.Minute)}
	}
	for path, reset := range map[string]func(*pubsubpb.Subscription){
		"ack_deadline_seconds":       func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 10 },
		"retain_acked_messages":      func(s *pubsubpb.Subscription) { s.RetainAckedMessages = false },
		"message_retention_duration": func(s *pubsubpb.Subscription) { s.MessageRetentionDuration = durationpb.New(7 * day) },
		"labels":                     func(s *pubsubpb.Subscription) { s.Labels = nil },
		"expiration_policy": func(s *pubsubpb.Subscription) {
			s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(31 * day)}
		},
		"dead_letter_policy":           func(s *pubsubpb.Subscription) { s.DeadLetterPolicy = nil },
		"retry_policy":                 func(s *pubsubpb.Subscription) { s.RetryPolicy = nil },
		"push_config":                  func(s *pubsubpb.Subscription) { s.PushConfig = nil },
		"enable_exactly_once_delivery": func(s *pubsubpb.Subscription) { s.EnableExactlyOnceDelivery = false },
	} {
		t.Run("subscription/"+path, func(t *testing.T) {
			sub := e.Subscription(t, topic, full, func(s *pubsubpb.Subscription) {
				switch path { // the two exclude one another
				case "push_config":
					s.PushConfig = &pubsubpb.PushConfig{PushEndpoint: "https://example.com/push"}
				case "enable_exactly_once_delivery":
					s.EnableExactlyOnceDelivery = true
				}
			})
			wantSubscriptionChange(t, e, sub, path, func(*pubsubpb.Subscription) {}, reset)
		})
	}
	schema := schemaIn(t, e, e.Project)
	for path, reset := range map[string]func(*pubsubpb.Topic){
		"labels":                     func(p *pubsubpb.Topic) { p.Labels = nil },
		"message_retention_duration": func(p *pubsubpb.Topic) { p.MessageRetentionDuration = nil },
		"message_storage_policy":     func(p *pubsubpb.Topic) { p.MessageStoragePolicy = nil },
		"schema_settings":            func(p *pubsubpb.Topic) { p.SchemaSettings = nil },
	} {
		t.Run("topic/"+path, func(t *testing.T) {
			name := e.Topic(t, func(p *pubsubpb.Topic) {
				p.Labels = map[string]string{"a": "b"}
				p.MessageRetentionDuration = durationpb.New(time.Hour)
				p.MessageStoragePolicy = &pubsubpb.MessageStoragePolicy{AllowedPersistenceRegions: []string{"europe-west1"}}
				p.SchemaSettings = &pubsubpb.SchemaSettings{Schema: schema, Encoding: pubsubpb.Encoding_JSON}
			})
			wantTopicChange(t, e, name, path, func(*pubsubpb.Topic) {}, reset)
		})
	}
	t.Run("snapshot/labels", func(t *testing.T) {
		snapshot := snapshotOf(t, e, e.Subscription(t, topic), func(r *pubsubpb.CreateSnapshotRequest) {
			r.Labels = map[string]string{"a": "b"}
		})
		if got := snapshotNow(t, e, snapshot).GetLabels(); len(got) != 1 {
			t.Fatalf("got labels %v, want one", got)
		}
		if _, err := snapshotUpdate(t, e, &pubsubpb.Snapshot{Name: snapshot}, "labels"); err != nil {
			t.Fatal(err)
		}
		if got := snapshotNow(t, e, snapshot).GetLabels(); len(got) != 0 {
			t.Errorf("got labels %v, want none", got)
		}
	})
}

func updateImmutable(t *testing.T, e *Env) {
	topic, other := e.Topic(t), e.Topic(t)
	sub := e.Subscription(t, topic)
	before := subscriptionNow(t, e, sub)
	for _, path := range []string{
		"name", "topic", "filter", "enable_message_ordering",
		"detached", "state", "topic_message_retention_duration", "analytics_hub_subscription_info",
	} {
		for name, body := range map[string]*pubsubpb.Subscription{
			"other value": {
				Name: sub, Topic: other, Filter: "attributes:a", EnableMessageOrdering: true, Detached: true,
				State: pubsubpb.Subscription_RESOURCE_ERROR, TopicMessageRetentionDuration: durationpb.New(time.Hour),
			},
			"same value": before,
		} {
			t.Run(path+"/"+name, func(t *testing.T) {
				_, err := subscriptionUpdate(t, e, body, path)
				WantCode(t, err, codes.InvalidArgument, "not mutable")
			})
		}
	}
	if diff := cmp.Diff(before, subscriptionNow(t, e, sub), protocmp.Transform()); diff != "" {
		t.Errorf("the subscription changed (-before +after):\n%s", diff)
	}
}

func updateSubscriptionFields(t *testing.T, e *Env) {
	topic, dead := e.Topic(t), e.Topic(t)
	for path, change := range map[string]func(*pubsubpb.Subscription){
		"ack_deadline_seconds":       func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 44 },
		"retain_acked_messages":      func(s *pubsubpb.Subscription) { s.RetainAckedMessages = true },
		"message_retention_duration": func(s *pubsubpb.Subscription) { s.MessageRetentionDuration = durationpb.New(2 * time.Hour) },
		"labels":                     func(s *pubsubpb.Subscription) { s.Labels = map[string]string{"c": "d"} },
		"expiration_policy": func(s *pubsubpb.Subscription) {
			s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(20 * day)}
		},
		"dead_letter_policy": func(s *pubsubpb.Subscription) {
			s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: dead, MaxDeliveryAttempts: 9}
		},
		"retry_policy": func(s *pubsubpb.Subscription) {
			s.RetryPolicy = &pubsubpb.RetryPolicy{
				MinimumBackoff: durationpb.New(2 * time.Second), MaximumBackoff: durationpb.New(3 * time.Minute),
			}
		},
		"enable_exactly_once_delivery": func(s *pubsubpb.Subscription) { s.EnableExactlyOnceDelivery = true },
		"push_config": func(s *pubsubpb.Subscription) {
			s.PushConfig = &pubsubpb.PushConfig{PushEndpoint: "https://example.com/other"}
		},
		// Without a value: not every server has them, but each knows them as updatable.
		"bigquery_config":      func(*pubsubpb.Subscription) {},
		"cloud_storage_config": func(*pubsubpb.Subscription) {},
		"bigtable_config":      func(*pubsubpb.Subscription) {},
	} {
		t.Run(path, func(t *testing.T) {
			sub := e.Subscription(t, topic, func(s *pubsubpb.Subscription) {
				s.AckDeadlineSeconds = 33
				s.Labels = map[string]string{"a": "b", "c": "b"}
			})
			wantSubscriptionChange(t, e, sub, path, change, change)
		})
	}
}

func updateTopicFields(t *testing.T, e *Env) {
	schema, other := schemaIn(t, e, e.Project), schemaIn(t, e, e.Project)
	first := schemaRevision(t, e, schema)
	second, err := e.Schema.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{
		Name: schema, Schema: &pubsubpb.Schema{Name: schema, Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: secondRevision},
	})
	if err != nil {
		t.Fatal(err)
	}
	settings := func(p *pubsubpb.Topic) *pubsubpb.SchemaSettings {
		if p.SchemaSettings == nil {
			p.SchemaSettings = &pubsubpb.SchemaSettings{}
		}
		return p.SchemaSettings
	}
	base := func(p *pubsubpb.Topic) {
		p.Labels = map[string]string{"a": "b", "c": "b"}
		p.SchemaSettings = &pubsubpb.SchemaSettings{Schema: schema, Encoding: pubsubpb.Encoding_JSON}
	}
	for path, change := range map[string]func(*pubsubpb.Topic){
		"labels": func(p *pubsubpb.Topic) { p.Labels = map[string]string{"c": "d"} },
		"message_storage_policy": func(p *pubsubpb.Topic) {
			p.MessageStoragePolicy = &pubsubpb.MessageStoragePolicy{AllowedPersistenceRegions: []string{"europe-west3"}}
		},
		"message_retention_duration": func(p *pubsubpb.Topic) { p.MessageRetentionDuration = durationpb.New(2 * time.Hour) },
		"schema_settings": func(p *pubsubpb.Topic) {
			p.SchemaSettings = &pubsubpb.SchemaSettings{Schema: other, Encoding: pubsubpb.Encoding_BINARY}
		},
		"schema_settings.schema":            func(p *pubsubpb.Topic) { settings(p).Schema = other },
		"schema_settings.encoding":          func(p *pubsubpb.Topic) { settings(p).Encoding = pubsubpb.Encoding_BINARY },
		"schema_settings.first_revision_id": func(p *pubsubpb.Topic) { settings(p).FirstRevisionId = first },
		"schema_settings.last_revision_id":  func(p *pubsubpb.Topic) { settings(p).LastRevisionId = second.GetRevisionId() },
		// Without a value: not every server has them, but each knows them as updatable.
		"ingestion_data_source_settings": func(*pubsubpb.Topic) {},
		"message_transforms":             func(*pubsubpb.Topic) {},
	} {
		t.Run(path, func(t *testing.T) {
			wantTopicChange(t, e, e.Topic(t, base), path, change, change)
		})
	}
	name := e.Topic(t, base)
	before := topicNow(t, e, name)
	for _, path := range []string{"name", "kms_key_name"} {
		t.Run(path, func(t *testing.T) {
			_, err := topicUpdate(t, e, &pubsubpb.Topic{
				Name: name, KmsKeyName: "projects/p/locations/global/keyRings/r/cryptoKeys/k",
			}, path)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
	if diff := cmp.Diff(before, topicNow(t, e, name), protocmp.Transform()); diff != "" {
		t.Errorf("the topic changed (-before +after):\n%s", diff)
	}
}

func updateSnapshotFields(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	for _, path := range []string{"labels", "expire_time"} {
		t.Run(path, func(t *testing.T) {
			name := snapshotOf(t, e, sub, func(r *pubsubpb.CreateSnapshotRequest) { r.Labels = map[string]string{"a": "b", "c": "b"} })
			want := snapshotNow(t, e, name)
			body := &pubsubpb.Snapshot{Name: name}
			for _, s := range []*pubsubpb.Snapshot{want, body} {
				if path == "labels" {
					s.Labels = map[string]string{"c": "d"}
				} else {
					s.ExpireTime = timestamppb.New(time.Now().Add(2 * day).Truncate(time.Second))
				}
			}
			got, err := snapshotUpdate(t, e, body, path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, snapshotNow(t, e, name), protocmp.Transform()); diff != "" {
				t.Errorf("afterwards (-want +got):\n%s", diff)
			}
		})
	}
	for _, path := range []string{"name", "topic"} {
		t.Run(path, func(t *testing.T) {
			_, err := snapshotUpdate(t, e, &pubsubpb.Snapshot{Name: snapshotOf(t, e, sub), Topic: topic}, path)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
}

func updateAllOrNothing(t *testing.T, e *Env) {
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	snapshot := snapshotOf(t, e, sub)
	labels := map[string]string{"a": "b"}
	minute := durationpb.New(time.Minute)
	topicBefore, subBefore, snapshotBefore := topicNow(t, e, topic), subscriptionNow(t, e, sub), snapshotNow(t, e, snapshot)

	for _, paths := range [][]string{
		{"labels", "nonsense"}, {"labels", "name"}, {"labels", "message_retention_duration"}, {"message_retention_duration", "labels"},
	} {
		t.Run("topic/"+strings.Join(paths, "+"), func(t *testing.T) {
			_, err := topicUpdate(t, e, &pubsubpb.Topic{Name: topic, Labels: labels, MessageRetentionDuration: minute}, paths...)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
	for _, test := range []struct {
		paths []string
		want  codes.Code
	}{
		{[]string{"labels", "nonsense"}, codes.InvalidArgument},
		{[]string{"ack_deadline_seconds", "labels", "topic"}, codes.InvalidArgument},
		{[]string{"labels", "ack_deadline_seconds", "message_retention_duration"}, codes.InvalidArgument},
		{[]string{"message_retention_duration", "ack_deadline_seconds", "labels"}, codes.InvalidArgument},
		{[]string{"labels", "ack_deadline_seconds", "dead_letter_policy"}, codes.NotFound},
	} {
		t.Run("subscription/"+strings.Join(test.paths, "+"), func(t *testing.T) {
			_, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{
				Name: sub, Topic: topic, Labels: labels, AckDeadlineSeconds: 20, MessageRetentionDuration: minute,
				DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: e.Name("topics")},
			}, test.paths...)
			WantCode(t, err, test.want)
		})
	}
	for _, paths := range [][]string{{"labels", "nonsense"}, {"labels", "topic"}} {
		t.Run("snapshot/"+strings.Join(paths, "+"), func(t *testing.T) {
			_, err := snapshotUpdate(t, e, &pubsubpb.Snapshot{Name: snapshot, Labels: labels}, paths...)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
	if diff := cmp.Diff(topicBefore, topicNow(t, e, topic), protocmp.Transform()); diff != "" {
		t.Errorf("the topic changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(subBefore, subscriptionNow(t, e, sub), protocmp.Transform()); diff != "" {
		t.Errorf("the subscription changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(snapshotBefore, snapshotNow(t, e, snapshot), protocmp.Transform()); diff != "" {
		t.Errorf("the snapshot changed (-before +after):\n%s", diff)
	}
}

func labelRules(t *testing.T, e *Env) {
	many := func(n int) map[string]string {
		labels := map[string]string{}
		for i := range n {
			labels[fmt.Sprintf("k%d", i)] = "v"
		}
		return labels
	}
	tests := []struct {
		name   string
		labels map[string]string
		want   codes.Code
	}{
		{"all characters", map[string]string{"a-_9": "9_-a"}, codes.OK},
		{"63 characters", map[string]string{strings.Repeat("k", 63): strings.Repeat("v", 63)}, codes.OK},
		{"empty value", map[string]string{"a": ""}, codes.OK},
		{"64 labels", many(64), codes.OK},
		{"65 labels", many(65), codes.InvalidArgument},
		{"empty key", map[string]string{"": "v"}, codes.InvalidArgument},
		{"key with a digit first", map[string]string{"1a": "v"}, codes.InvalidArgument},
		{"key with an underscore first", map[string]string{"_a": "v"}, codes.InvalidArgument},
		{"key with a capital", map[string]string{"aB": "v"}, codes.InvalidArgument},
		{"key with a dot", map[string]string{"a.b": "v"}, codes.InvalidArgument},
		{"key of 64 characters", map[string]string{strings.Repeat("k", 64): "v"}, codes.InvalidArgument},
		{"value with a capital", map[string]string{"a": "V"}, codes.InvalidArgument},
		{"value with a space", map[string]string{"a": "v w"}, codes.InvalidArgument},
		{"value of 64 characters", map[string]string{"a": strings.Repeat("v", 64)}, codes.InvalidArgument},
	}
	topic := e.Topic(t)
	sub := e.Subscription(t, topic)
	snapshot := snapshotOf(t, e, sub)
	for _, call := range []struct {
		do   func(ctx context.Context, labels map[string]string) error
		name string
	}{
		{func(ctx context.Context, labels map[string]string) error {
			_, err := e.Topics.CreateTopic(ctx, &pubsubpb.Topic{Name: e.Name("topics"), Labels: labels}, singleTry)
			return err
		}, "CreateTopic"},
		{func(ctx context.Context, labels map[string]string) error {
			_, err := e.Subs.CreateSubscription(ctx, &pubsubpb.Subscription{
				Name: e.Name("subscriptions"), Topic: topic, Labels: labels,
			}, singleTry)
			return err
		}, "CreateSubscription"},
		{func(ctx context.Context, labels map[string]string) error {
			_, err := e.Subs.CreateSnapshot(ctx, &pubsubpb.CreateSnapshotRequest{
				Name: e.Name("snapshots"), Subscription: sub, Labels: labels,
			}, singleTry)
			return err
		}, "CreateSnapshot"},
		{func(ctx context.Context, labels map[string]string) error {
			_, err := e.Topics.UpdateTopic(ctx, &pubsubpb.UpdateTopicRequest{
				Topic: &pubsubpb.Topic{Name: topic, Labels: labels}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			}, singleTry)
			return err
		}, "UpdateTopic"},
		{func(ctx context.Context, labels map[string]string) error {
			_, err := e.Subs.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{
				Subscription: &pubsubpb.Subscription{Name: sub, Labels: labels},
				UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			}, singleTry)
			return err
		}, "UpdateSubscription"},
		{func(ctx context.Context, labels map[string]string) error {
			_, err := e.Subs.UpdateSnapshot(ctx, &pubsubpb.UpdateSnapshotRequest{
				Snapshot: &pubsubpb.Snapshot{Name: snapshot, Labels: labels}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			}, singleTry)
			return err
		}, "UpdateSnapshot"},
	} {
		for _, test := range tests {
			t.Run(call.name+"/"+test.name, func(t *testing.T) {
				WantCode(t, call.do(t.Context(), test.labels), test.want)
			})
		}
	}
}

// wantSubscriptionChange updates one path of a subscription to what body puts there. Then it has what change
// makes of it, and nothing else has changed.
func wantSubscriptionChange(t *testing.T, e *Env, name, path string, body, change func(*pubsubpb.Subscription)) {
	t.Helper()
	before := subscriptionNow(t, e, name)
	request := &pubsubpb.Subscription{Name: name}
	body(request)
	want, _ := proto.Clone(before).(*pubsubpb.Subscription)
	change(want)
	got, err := subscriptionUpdate(t, e, request, path)
	if err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]*pubsubpb.Subscription{"answer": got, "afterwards": subscriptionNow(t, e, name)} {
		for _, p := range []*pubsubpb.Subscription{want, s} {
			if p.PushConfig == nil { // there or not, it means the same
				p.PushConfig = &pubsubpb.PushConfig{}
			}
		}
		if diff := cmp.Diff(want, s, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

// wantTopicChange is wantSubscriptionChange for topics.
func wantTopicChange(t *testing.T, e *Env, name, path string, body, change func(*pubsubpb.Topic)) {
	t.Helper()
	request := &pubsubpb.Topic{Name: name}
	body(request)
	want := topicNow(t, e, name)
	change(want)
	got, err := topicUpdate(t, e, request, path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, topicNow(t, e, name), protocmp.Transform()); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
}

func wantNoLabels(t *testing.T, e *Env, topic, sub, snapshot string) {
	t.Helper()
	for what, labels := range map[string]map[string]string{
		"topic":        topicNow(t, e, topic).GetLabels(),
		"subscription": subscriptionNow(t, e, sub).GetLabels(),
		"snapshot":     snapshotNow(t, e, snapshot).GetLabels(),
	} {
		if len(labels) != 0 {
			t.Errorf("the %s has labels %v, want none", what, labels)
		}
	}
}

func topicUpdate(t *testing.T, e *Env, topic *pubsubpb.Topic, paths ...string) (*pubsubpb.Topic, error) {
	t.Helper()
	return e.Topics.UpdateTopic(t.Context(), &pubsubpb.UpdateTopicRequest{
		Topic: topic, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	}, singleTry)
}

func subscriptionUpdate(t *testing.T, e *Env, sub *pubsubpb.Subscription, paths ...string) (*pubsubpb.Subscription, error) {
	t.Helper()
	return e.Subs.UpdateSubscription(t.Context(), &pubsubpb.UpdateSubscriptionRequest{
		Subscription: sub, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	}, singleTry)
}

func snapshotUpdate(t *testing.T, e *Env, snapshot *pubsubpb.Snapshot, paths ...string) (*pubsubpb.Snapshot, error) {
	t.Helper()
	return e.Subs.UpdateSnapshot(t.Context(), &pubsubpb.UpdateSnapshotRequest{
		Snapshot: snapshot, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	}, singleTry)
}

func topicNow(t *testing.T, e *Env, name string) *pubsubpb.Topic {
	t.Helper()
	topic, err := e.Topics.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: name})
	if err != nil {
		t.Fatalf("GetTopic: %v", err)
	}
	return topic
}

func subscriptionNow(t *testing.T, e *Env, name string) *pubsubpb.Subscription {
	t.Helper()
	sub, err := e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: name})
	if err != nil {
		t.Fatalf("GetSubscription: %v", err)
	}
	return sub
}

func snapshotNow(t *testing.T, e *Env, name string) *pubsubpb.Snapshot {
	t.Helper()
	snapshot, err := e.Subs.GetSnapshot(t.Context(), &pubsubpb.GetSnapshotRequest{Snapshot: name})
	if err != nil {
		t.Fatalf("GetSnapshot: %v", err)
	}
	return snapshot
}

// elsewhere is another project.
func elsewhere(e *Env) string { return e.Project + "-other" }

func topicIn(t *testing.T, e *Env, project string) string {
	t.Helper()
	return e.Topic(t, func(p *pubsubpb.Topic) { p.Name = strings.Replace(p.GetName(), "/"+e.Project+"/", "/"+project+"/", 1) })
}

// schemaIn creates a schema with the first revision and answers its name.
func schemaIn(t *testing.T, e *Env, project string) string {
	t.Helper()
	_, id, _ := strings.Cut(e.Name("schemas"), "/schemas/")
	schema, err := e.Schema.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{
		Parent: "projects/" + project, SchemaId: id,
		Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: firstRevision},
	})
	if err != nil {
		t.Fatalf("CreateSchema: %v", err)
	}
	return schema.GetName()
}

func schemaRevision(t *testing.T, e *Env, name string) string {
	t.Helper()
	schema, err := e.Schema.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: name})
	if err != nil {
		t.Fatalf("GetSchema: %v", err)
	}
	return schema.GetRevisionId()
}

// snapshotOf creates a snapshot of a subscription and answers its name.
func snapshotOf(t *testing.T, e *Env, sub string, change ...func(*pubsubpb.CreateSnapshotRequest)) string {
	t.Helper()
	request := &pubsubpb.CreateSnapshotRequest{Name: e.Name("snapshots"), Subscription: sub}
	for _, f := range change {
		f(request)
	}
	if _, err := e.Subs.CreateSnapshot(t.Context(), request); err != nil {
		t.Fatalf("CreateSnapshot: %v", err)
	}
	return request.GetName()
}

func seekToTime(t *testing.T, e *Env, sub string, at time.Time) {
	t.Helper()
	if _, err := e.Subs.Seek(t.Context(), &pubsubpb.SeekRequest{
		Subscription: sub, Target: &pubsubpb.SeekRequest_Time{Time: timestamppb.New(at)},
	}); err != nil {
		t.Fatalf("Seek: %v", err)
	}
}

func seekToSnapshot(t *testing.T, e *Env, sub, snapshot string) {
	t.Helper()
	if _, err := e.Subs.Seek(t.Context(), &pubsubpb.SeekRequest{
		Subscription: sub, Target: &pubsubpb.SeekRequest_Snapshot{Snapshot: snapshot},
	}); err != nil {
		t.Fatalf("Seek: %v", err)
	}
}

// collect pulls until so many messages have come, or none come any more, and looks whether there are more than
// that. It acknowledges nothing.
func collect(t *testing.T, e *Env, sub string, want int) (messages []*pubsubpb.ReceivedMessage) {
	t.Helper()
	for len(messages) < want {
		next := e.Pull(t, sub, 1000)
		if len(next) == 0 {
			return messages
		}
		messages = append(messages, next...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	more, err := e.Subs.Pull(ctx, &pubsubpb.PullRequest{Subscription: sub, MaxMessages: 1000}, singleTry)
	if err != nil && status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("Pull: %v", err)
	}
	return append(messages, more.GetReceivedMessages()...)
}

// wantTexts pulls from a subscription and wants messages with exactly these texts, in any order.
func wantTexts(t *testing.T, e *Env, sub string, want ...string) []*pubsubpb.ReceivedMessage {
	t.Helper()
	messages := collect(t, e, sub, len(want))
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(Texts(messages)))); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	return messages
}

// streamFrom opens a stream as the client does, without limits.
func streamFrom(t *testing.T, e *Env, sub string) pubsubpb.Subscriber_StreamingPullClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := e.Subs.StreamingPull(ctx, singleTry)
	if err != nil {
		t.Fatalf("StreamingPull: %v", err)
	}
	if err := stream.Send(&pubsubpb.StreamingPullRequest{
		Subscription: sub, StreamAckDeadlineSeconds: 10, ClientId: "conformance", ProtocolVersion: 1,
	}); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv says why
		t.Fatalf("StreamingPull: %v", err)
	}
	return stream
}

// nextMessages waits for a response with messages.
func nextMessages(t *testing.T, stream pubsubpb.Subscriber_StreamingPullClient) *pubsubpb.StreamingPullResponse {
	t.Helper()
	for {
		response, err := stream.Recv()
		if err != nil {
			t.Fatalf("StreamingPull: %v", err)
		}
		if len(response.GetReceivedMessages()) > 0 {
			return response
		}
	}
}

// endOf reads a stream to its end, and answers why it ended.
func endOf(t *testing.T, stream pubsubpb.Subscriber_StreamingPullClient) error {
	t.Helper()
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}
