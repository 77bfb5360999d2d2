package conformance

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

func updateWithoutMask(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
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
	}
	wantNoLabels(t, e, topic, sub)
}

func updateUnknownPath(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	labels := map[string]string{"a": "b"}
	for _, path := range []string{"nonsense", "Labels", "messageRetentionDuration", "schema_settings.nonsense", ""} {
		t.Run(path, func(t *testing.T) {
			WantCode(t, errOf(topicUpdate(t, e, &pubsubpb.Topic{Name: topic, Labels: labels}, path)), codes.InvalidArgument)
			WantCode(t, errOf(subscriptionUpdate(t, e, &pubsubpb.Subscription{Name: sub, Labels: labels}, path)), codes.InvalidArgument)
		})
	}
	wantNoLabels(t, e, topic, sub)
}

// subscriptionChanges returns a change of each mutable field, by its path. dead is the new dead-letter topic.
func subscriptionChanges(dead string) map[string]func(*pubsubpb.Subscription) {
	return map[string]func(*pubsubpb.Subscription){
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
	}
}

func updateResets(t *testing.T, e *Env) {
	topic, dead := e.Topic(t), e.Topic(t)
	for path, change := range subscriptionChanges(dead) {
		t.Run("subscription/"+path, func(t *testing.T) {
			want := subscriptionNow(t, e, e.Subscription(t, topic))
			sub := e.Subscription(t, topic, change)
			got, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{Name: sub}, path)
			must(t, err)
			want.Name = sub
			wantEqual(t, want, got, "after the reset")
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
}

func updateImmutable(t *testing.T, e *Env) {
	topic, other := e.Topic(t), e.Topic(t)
	sub := e.Subscription(t, topic)
	before := subscriptionNow(t, e, sub)
	for _, path := range []string{
		"name", "topic", "filter", "enable_message_ordering",
		"detached", "state", "topic_message_retention_duration", "analytics_hub_subscription_info",
	} {
		t.Run(path, func(t *testing.T) {
			_, err := subscriptionUpdate(t, e, &pubsubpb.Subscription{
				Name: sub, Topic: other, Filter: "attributes:a", EnableMessageOrdering: true, Detached: true,
				State: pubsubpb.Subscription_RESOURCE_ERROR, TopicMessageRetentionDuration: durationpb.New(time.Hour),
			}, path)
			WantCode(t, err, codes.InvalidArgument, "not mutable")
		})
	}
	wantEqual(t, before, subscriptionNow(t, e, sub), "the subscription changed")
}

func updateSubscriptionFields(t *testing.T, e *Env) {
	topic, dead := e.Topic(t), e.Topic(t)
	for path, change := range subscriptionChanges(dead) {
		t.Run(path, func(t *testing.T) {
			sub := e.Subscription(t, topic, func(s *pubsubpb.Subscription) {
				s.AckDeadlineSeconds = 33
				s.Labels = map[string]string{"a": "b", "c": "b"}
			})
			body, want := &pubsubpb.Subscription{Name: sub}, subscriptionNow(t, e, sub)
			change(body)
			change(want)
			must(t, errOf(subscriptionUpdate(t, e, body, path)))
			wantEqual(t, want, subscriptionNow(t, e, sub), "afterwards")
		})
	}
}

func updateTopicFields(t *testing.T, e *Env) {
	schema, other := schemaIn(t, e, e.Project), schemaIn(t, e, e.Project)
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
	wantEqual(t, before, topicNow(t, e, name), "the topic changed")
}

func updateAllOrNothing(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	labels := map[string]string{"a": "b"}
	minute := durationpb.New(time.Minute)
	topicBefore, subBefore := topicNow(t, e, topic), subscriptionNow(t, e, sub)
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
	wantEqual(t, topicBefore, topicNow(t, e, topic), "the topic changed")
	wantEqual(t, subBefore, subscriptionNow(t, e, sub), "the subscription changed")
}

// wantTopicChange updates one path of a topic to its value in body. It fails the test unless the result has exactly the
// difference that change makes.
func wantTopicChange(t *testing.T, e *Env, name, path string, body, change func(*pubsubpb.Topic)) {
	t.Helper()
	request := &pubsubpb.Topic{Name: name}
	body(request)
	want := topicNow(t, e, name)
	change(want)
	got, err := topicUpdate(t, e, request, path)
	must(t, err)
	wantEqual(t, want, got, "response")
	wantEqual(t, want, topicNow(t, e, name), "afterwards")
}

func wantNoLabels(t *testing.T, e *Env, topic, sub string) {
	t.Helper()
	for what, labels := range map[string]map[string]string{
		"topic":        topicNow(t, e, topic).GetLabels(),
		"subscription": subscriptionNow(t, e, sub).GetLabels(),
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

func topicNow(t *testing.T, e *Env, name string) *pubsubpb.Topic {
	t.Helper()
	topic, err := e.Topics.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: name})
	must(t, err)
	return topic
}

func subscriptionNow(t *testing.T, e *Env, name string) *pubsubpb.Subscription {
	t.Helper()
	sub, err := e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: name})
	must(t, err)
	return sub
}
