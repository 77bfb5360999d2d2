package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

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
				switch path { // the two exclude each other
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
		// Without a value: not every server supports them, but each accepts them in a mask.
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
		// Without a value: not every server supports them, but each accepts them in a mask.
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

// wantSubscriptionChange updates one path of a subscription to its value in body. It fails the test unless
// the result has exactly the difference that change makes.
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
			if p.PushConfig == nil { // set or not, it means the same
				p.PushConfig = &pubsubpb.PushConfig{}
			}
		}
		if diff := cmp.Diff(want, s, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

// wantTopicChange does the same as wantSubscriptionChange for a topic.
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
