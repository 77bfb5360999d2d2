package pubsublocal

import (
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

func checkMessage(t *testing.T, got, want proto.Message) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func numberedLabels(n int) map[string]string {
	labels := make(map[string]string, n)
	for i := range n {
		labels[fmt.Sprintf("key-%d", i)] = "value"
	}
	return labels
}

// A22: the valid labels of a resource.
func TestCheckLabels(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := []struct {
		name   string
		labels map[string]string
		code   codes.Code
	}{
		{"none", nil, codes.OK},
		{"plain", map[string]string{"a-b_1": "1_b-a"}, codes.OK},
		{"empty value", map[string]string{"a": ""}, codes.OK},
		{"63 characters", map[string]string{long: long}, codes.OK},
		{"63 letters of two bytes", map[string]string{strings.Repeat("ä", 63): strings.Repeat("日", 63)}, codes.OK},
		{"64 labels", numberedLabels(64), codes.OK},
		{"65 labels", numberedLabels(65), codes.InvalidArgument},
		{"long key", map[string]string{long + "a": "v"}, codes.InvalidArgument},
		{"long value", map[string]string{"k": long + "a"}, codes.InvalidArgument},
		{"empty key", map[string]string{"": "v"}, codes.InvalidArgument},
		{"digit first", map[string]string{"1a": "v"}, codes.InvalidArgument},
		{"dash first", map[string]string{"-a": "v"}, codes.InvalidArgument},
		{"upper-case key", map[string]string{"aB": "v"}, codes.InvalidArgument},
		{"upper-case value", map[string]string{"a": "V"}, codes.InvalidArgument},
		{"dot", map[string]string{"a.b": "v"}, codes.InvalidArgument},
		{"space in value", map[string]string{"a": "v w"}, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text := ""
			if test.code != codes.OK {
				text = "labels"
			}
			checkStatus(t, checkLabels(test.labels), test.code, text)
		})
	}
}

// The valid bodies of a topic. An error names the field.
func TestNormalizeTopic(t *testing.T) {
	retention := func(d time.Duration) *pubsubpb.Topic {
		return &pubsubpb.Topic{MessageRetentionDuration: durationpb.New(d)}
	}
	schema := func(name string, encoding pubsubpb.Encoding) *pubsubpb.Topic {
		return &pubsubpb.Topic{SchemaSettings: &pubsubpb.SchemaSettings{Schema: name, Encoding: encoding}}
	}
	tests := []struct {
		name  string
		topic *pubsubpb.Topic
		code  codes.Code
		text  string
	}{
		{"plain", &pubsubpb.Topic{}, codes.OK, ""},
		{"A3 schema", schema("projects/p/schemas/abc", pubsubpb.Encoding_JSON), codes.OK, ""},
		{"A3 bad schema", schema("abc", pubsubpb.Encoding_JSON), codes.InvalidArgument, "(schema=abc)"},
		{"A3 no schema", schema("", pubsubpb.Encoding_JSON), codes.InvalidArgument, "(schema=)"},
		{"A3 deleted schema", schema(deletedSchema, pubsubpb.Encoding_JSON), codes.InvalidArgument, "(schema=_deleted-schema_)"},
		{"A22", &pubsubpb.Topic{Labels: map[string]string{"A": ""}}, codes.InvalidArgument, "labels"},
		{"C1 10 minutes", retention(10 * time.Minute), codes.OK, ""},
		{"C1 31 days", retention(31 * day), codes.OK, ""},
		{"C1 less", retention(10*time.Minute - 1), codes.InvalidArgument, "message_retention_duration"},
		{"C1 more", retention(31*day + 1), codes.InvalidArgument, "message_retention_duration"},
		{"C1 zero", retention(0), codes.InvalidArgument, "message_retention_duration"},
		{
			"C1 not a duration", &pubsubpb.Topic{MessageRetentionDuration: &durationpb.Duration{Seconds: 3600, Nanos: -1}},
			codes.InvalidArgument, "message_retention_duration",
		},
		{"M11 encoding", schema("projects/p/schemas/abc", 0), codes.InvalidArgument, "schema_settings.encoding"},
		{"P kms", &pubsubpb.Topic{KmsKeyName: "k"}, codes.OK, ""},
		{
			"P storage", &pubsubpb.Topic{MessageStoragePolicy: &pubsubpb.MessageStoragePolicy{AllowedPersistenceRegions: []string{"r"}}},
			codes.OK, "",
		},
		{
			"P storage nowhere", &pubsubpb.Topic{MessageStoragePolicy: &pubsubpb.MessageStoragePolicy{}},
			codes.InvalidArgument, "allowed_persistence_regions",
		},
		{
			"P ingestion", &pubsubpb.Topic{IngestionDataSourceSettings: &pubsubpb.IngestionDataSourceSettings{}},
			codes.Unimplemented, "ingestion_data_source_settings",
		},
		{
			"P transforms", &pubsubpb.Topic{MessageTransforms: []*pubsubpb.MessageTransform{{}}},
			codes.Unimplemented, "message_transforms",
		},
		{"P tags", &pubsubpb.Topic{Tags: map[string]string{"a": "b"}}, codes.Unimplemented, "tags"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := proto.CloneOf(test.topic)
			want.State = pubsubpb.Topic_ACTIVE
			checkStatus(t, normalizeTopic(test.topic), test.code, test.text)
			if test.code == codes.OK {
				checkMessage(t, test.topic, want)
			}
		})
	}
}

// plainSubscription is what GetSubscription returns for a subscription that was created with names
// only (D1).
func plainSubscription() *pubsubpb.Subscription {
	return &pubsubpb.Subscription{
		Name:                     "projects/p/subscriptions/abc",
		Topic:                    "projects/p/topics/abc",
		PushConfig:               &pubsubpb.PushConfig{},
		AckDeadlineSeconds:       10,
		MessageRetentionDuration: durationpb.New(7 * day),
		ExpirationPolicy:         &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(31 * day)},
		State:                    pubsubpb.Subscription_ACTIVE,
	}
}

// with returns a message after a change. It is for tables.
func with[M any](m M, change func(M)) M {
	change(m)
	return m
}

func push() *pubsubpb.PushConfig {
	return &pubsubpb.PushConfig{PushEndpoint: "https://example.com/push"}
}

func retryPolicy(minimum, maximum time.Duration) *pubsubpb.RetryPolicy {
	return &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(minimum), MaximumBackoff: durationpb.New(maximum)}
}

// Unset fields get their defaults, and output-only fields are ignored.
func TestNormalizeSubscriptionDefaults(t *testing.T) {
	type subscription = pubsubpb.Subscription
	const deadLetters = "projects/q/topics/dead" // another project: A8
	tests := []struct {
		name  string
		given func(*subscription)
		want  func(*subscription)
	}{
		{"D1", func(*subscription) {}, func(*subscription) {}},
		{
			"D3",
			func(s *subscription) { s.EnableExactlyOnceDelivery = true },
			func(s *subscription) { s.EnableExactlyOnceDelivery, s.AckDeadlineSeconds = true, 60 },
		},
		{
			"D3 not with a deadline",
			func(s *subscription) { s.EnableExactlyOnceDelivery, s.AckDeadlineSeconds = true, 11 },
			func(s *subscription) { s.EnableExactlyOnceDelivery, s.AckDeadlineSeconds = true, 11 },
		},
		{
			"D7",
			func(s *subscription) { s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{} },
			func(s *subscription) { s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{} },
		},
		{
			"D9 both",
			func(s *subscription) { s.RetryPolicy = &pubsubpb.RetryPolicy{} },
			func(s *subscription) { s.RetryPolicy = retryPolicy(10*time.Second, 600*time.Second) },
		},
		{
			"D9 maximum",
			func(s *subscription) { s.RetryPolicy = &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(0)} },
			func(s *subscription) { s.RetryPolicy = retryPolicy(0, 600*time.Second) },
		},
		{
			"K2",
			func(s *subscription) { s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: deadLetters} },
			func(s *subscription) {
				s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: deadLetters, MaxDeliveryAttempts: 5}
			},
		},
		{
			"C4 and other output",
			func(s *subscription) {
				s.Detached, s.State = true, pubsubpb.Subscription_RESOURCE_ERROR
				s.TopicMessageRetentionDuration = durationpb.New(time.Hour)
				s.AnalyticsHubSubscriptionInfo = &pubsubpb.Subscription_AnalyticsHubSubscriptionInfo{Listing: "l"}
			},
			func(*subscription) {},
		},
		{
			"P push is stored",
			func(s *subscription) { s.PushConfig = push() },
			func(s *subscription) { s.PushConfig = push() },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			names := plainSubscription()
			got := with(&pubsubpb.Subscription{Name: names.GetName(), Topic: names.GetTopic()}, test.given)
			if err := normalizeSubscription(got); err != nil {
				t.Fatal(err)
			}
			checkMessage(t, got, with(plainSubscription(), test.want))
			again := proto.CloneOf(got)
			if err := normalizeSubscription(again); err != nil {
				t.Fatal(err)
			}
			checkMessage(t, again, got)
		})
	}
}

// Values at the limits of their ranges, and fields that exclude each other.
func TestNormalizeSubscriptionChecks(t *testing.T) {
	type subscription = pubsubpb.Subscription
	ackDeadline := func(seconds int32) *subscription { return &subscription{AckDeadlineSeconds: seconds} }
	lifetimes := func(retention, ttl time.Duration) *subscription {
		return &subscription{
			MessageRetentionDuration: durationpb.New(retention),
			ExpirationPolicy:         &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(ttl)},
		}
	}
	retry := func(minimum, maximum time.Duration) *subscription {
		return &subscription{RetryPolicy: retryPolicy(minimum, maximum)}
	}
	deadLetters := func(topic string, attempts int32) *subscription {
		return &subscription{DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: topic, MaxDeliveryAttempts: attempts}}
	}
	const topic = "projects/p/topics/dead"
	var (
		bigQuery = &pubsubpb.BigQueryConfig{Table: "t"}
		storage  = &pubsubpb.CloudStorageConfig{Bucket: "b"}
		bigtable = &pubsubpb.BigtableConfig{Table: "t"}
	)
	tests := []struct {
		name         string
		subscription *subscription
		code         codes.Code
		text         string
	}{
		{"A22", &subscription{Labels: map[string]string{"A": ""}}, codes.InvalidArgument, "labels"},
		{"D2 10 s", ackDeadline(10), codes.OK, ""},
		{"D2 600 s", ackDeadline(600), codes.OK, ""},
		{"D2 9 s", ackDeadline(9), codes.InvalidArgument, "ack_deadline_seconds"},
		{"D2 601 s", ackDeadline(601), codes.InvalidArgument, "ack_deadline_seconds"},
		{"D2 negative", ackDeadline(-1), codes.InvalidArgument, "ack_deadline_seconds"},
		{"D4 10 minutes", lifetimes(10*time.Minute, 31*day), codes.OK, ""},
		{"D4 31 days", lifetimes(31*day, 31*day), codes.OK, ""},
		{"D4 less", lifetimes(10*time.Minute-1, 31*day), codes.InvalidArgument, "message_retention_duration"},
		{"D4 more", lifetimes(31*day+1, 32*day), codes.InvalidArgument, "message_retention_duration"},
		{"D5 1 day", lifetimes(time.Hour, day), codes.OK, ""},
		{"D5 less", lifetimes(time.Hour, day-1), codes.InvalidArgument, "expiration_policy.ttl"},
		{"D5 zero", lifetimes(time.Hour, 0), codes.InvalidArgument, "expiration_policy.ttl"},
		{"D5 a year", lifetimes(time.Hour, 365*day), codes.OK, ""},
		{
			"D5 not a duration", &subscription{ExpirationPolicy: &pubsubpb.ExpirationPolicy{Ttl: &durationpb.Duration{Seconds: 1 << 60}}},
			codes.InvalidArgument, "expiration_policy.ttl",
		},
		{"D6 equal", lifetimes(7*day, 7*day), codes.OK, ""},
		{"D6 shorter", lifetimes(7*day, 7*day-1), codes.InvalidArgument, "message_retention_duration"},
		{"D6 than the default", &subscription{ExpirationPolicy: lifetimes(0, day).GetExpirationPolicy()}, codes.InvalidArgument, "168h"},
		{"D9 0 and 600 s", retry(0, 600*time.Second), codes.OK, ""},
		{"D9 equal", retry(time.Second, time.Second), codes.OK, ""},
		{"D9 negative", retry(-1, time.Second), codes.InvalidArgument, "minimum_backoff"},
		{"D9 long minimum", retry(601*time.Second, 600*time.Second), codes.InvalidArgument, "minimum_backoff"},
		{"D9 long maximum", retry(0, 600*time.Second+1), codes.InvalidArgument, "maximum_backoff"},
		{"D9 negative maximum", retry(0, -1), codes.InvalidArgument, "maximum_backoff"},
		{"D9 minimum over maximum", retry(2*time.Second, time.Second), codes.InvalidArgument, "minimum_backoff"},
		{"D17 push and BigQuery", &subscription{PushConfig: push(), BigqueryConfig: bigQuery}, codes.InvalidArgument, "push_config and bigquery_config"},
		{
			"D17 two exports", &subscription{CloudStorageConfig: storage, BigtableConfig: bigtable},
			codes.InvalidArgument, "cloud_storage_config and bigtable_config",
		},
		{
			"D18 push", &subscription{PushConfig: push(), EnableExactlyOnceDelivery: true},
			codes.InvalidArgument, "enable_exactly_once_delivery",
		},
		{
			"D18 export", &subscription{BigqueryConfig: bigQuery, EnableExactlyOnceDelivery: true},
			codes.InvalidArgument, "enable_exactly_once_delivery",
		},
		{"D18 empty push", &subscription{PushConfig: &pubsubpb.PushConfig{}, EnableExactlyOnceDelivery: true}, codes.OK, ""},
		{"E1 256 bytes", &subscription{Filter: "attributes:" + strings.Repeat("k", 245)}, codes.OK, ""},
		{"E1 257 bytes", &subscription{Filter: "attributes:" + strings.Repeat("k", 246)}, codes.InvalidArgument, "filter"},
		{"E2", &subscription{Filter: "a = b"}, codes.InvalidArgument, "filter"},
		{"K2 5", deadLetters(topic, 5), codes.OK, ""},
		{"K2 100", deadLetters(topic, 100), codes.OK, ""},
		{"K2 4", deadLetters(topic, 4), codes.InvalidArgument, "max_delivery_attempts"},
		{"K2 101", deadLetters(topic, 101), codes.InvalidArgument, "max_delivery_attempts"},
		{"K2 negative", deadLetters(topic, -1), codes.InvalidArgument, "max_delivery_attempts"},
		{"A3 dead-letter topic", deadLetters("dead", 5), codes.InvalidArgument, "(dead_letter_topic=dead)"},
		{"A3 no dead-letter topic", deadLetters("", 5), codes.InvalidArgument, "(dead_letter_topic=)"},
		{"A3 deleted dead-letter topic", deadLetters(deletedTopic, 5), codes.InvalidArgument, "(dead_letter_topic=_deleted-topic_)"},
		{"P BigQuery", &subscription{BigqueryConfig: bigQuery}, codes.Unimplemented, "bigquery_config"},
		{"P Cloud Storage", &subscription{CloudStorageConfig: storage}, codes.Unimplemented, "cloud_storage_config"},
		{"P Bigtable", &subscription{BigtableConfig: bigtable}, codes.Unimplemented, "bigtable_config"},
		{"P transforms", &subscription{MessageTransforms: []*pubsubpb.MessageTransform{{}}}, codes.Unimplemented, "message_transforms"},
		{"P tags", &subscription{Tags: map[string]string{"a": "b"}}, codes.Unimplemented, "tags"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkStatus(t, normalizeSubscription(test.subscription), test.code, test.text)
		})
	}
}

func paths(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

// A mask changes and resets its fields, and keeps the others (A16, A18, A21).
func TestPatchSubscription(t *testing.T) {
	type subscription = pubsubpb.Subscription
	deadLetters := func(topic string) *pubsubpb.DeadLetterPolicy {
		return &pubsubpb.DeadLetterPolicy{DeadLetterTopic: topic, MaxDeliveryAttempts: 7}
	}
	// No case changes the filter, detached, or a field that is not in its mask.
	current := with(plainSubscription(), func(s *subscription) {
		s.Filter, s.EnableMessageOrdering, s.Detached = "attributes:a", true, true
		s.TopicMessageRetentionDuration = durationpb.New(time.Hour)
		s.AckDeadlineSeconds, s.RetainAckedMessages = 30, true
		s.Labels = map[string]string{"a": "1", "b": "2"}
		s.DeadLetterPolicy = deadLetters(deletedTopic) // the topic was deleted meanwhile
		s.ExpirationPolicy.Ttl = durationpb.New(8 * day)
	})
	tests := []struct {
		name string
		mask []string
		body *subscription
		want func(*subscription)
	}{
		{
			"one field", []string{"ack_deadline_seconds"},
			&subscription{AckDeadlineSeconds: 60, RetainAckedMessages: false, Filter: "not in the mask"},
			func(s *subscription) { s.AckDeadlineSeconds = 60 },
		},
		{"without a body", []string{"ack_deadline_seconds"}, nil, func(s *subscription) { s.AckDeadlineSeconds = 10 }},
		{
			"A16 defaults", []string{
				"ack_deadline_seconds", "retain_acked_messages", "message_retention_duration", "labels",
				"expiration_policy", "dead_letter_policy", "retry_policy", "push_config",
			},
			&subscription{},
			func(s *subscription) {
				s.AckDeadlineSeconds, s.RetainAckedMessages, s.Labels, s.DeadLetterPolicy = 10, false, nil, nil
				s.ExpirationPolicy.Ttl = durationpb.New(31 * day)
			},
		},
		{
			"labels as a whole", []string{"labels"},
			&subscription{Labels: map[string]string{"c": "3"}},
			func(s *subscription) { s.Labels = map[string]string{"c": "3"} },
		},
		{
			"D3 exactly-once and the default deadline", []string{"enable_exactly_once_delivery", "ack_deadline_seconds"},
			&subscription{EnableExactlyOnceDelivery: true},
			func(s *subscription) { s.EnableExactlyOnceDelivery, s.AckDeadlineSeconds = true, 60 },
		},
		{
			"exactly-once alone", []string{"enable_exactly_once_delivery"},
			&subscription{EnableExactlyOnceDelivery: true},
			func(s *subscription) { s.EnableExactlyOnceDelivery = true },
		},
		{
			"D7 never expires", []string{"expiration_policy"},
			&subscription{ExpirationPolicy: &pubsubpb.ExpirationPolicy{}},
			func(s *subscription) { s.ExpirationPolicy.Ttl = nil },
		},
		{
			"inside a policy that is there", []string{"expiration_policy.ttl", "dead_letter_policy.max_delivery_attempts"},
			&subscription{
				ExpirationPolicy: &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(9 * day)},
				DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "not in the mask", MaxDeliveryAttempts: 9},
			},
			func(s *subscription) {
				s.ExpirationPolicy.Ttl = durationpb.New(9 * day)
				s.DeadLetterPolicy.MaxDeliveryAttempts = 9
			},
		},
		{
			"inside a policy that is new", []string{"retry_policy.minimum_backoff"},
			&subscription{RetryPolicy: retryPolicy(time.Second, 2*time.Second)},
			func(s *subscription) { s.RetryPolicy = retryPolicy(time.Second, 600*time.Second) },
		},
		{"A16 inside a policy", []string{"dead_letter_policy.max_delivery_attempts"}, &subscription{}, func(s *subscription) {
			s.DeadLetterPolicy.MaxDeliveryAttempts = 5
		}},
		{"A16 inside a policy that is nowhere", []string{"retry_policy.minimum_backoff"}, &subscription{}, func(*subscription) {}},
		{
			"another dead-letter topic", []string{"dead_letter_policy.dead_letter_topic"},
			&subscription{DeadLetterPolicy: deadLetters("projects/p/topics/dead")},
			func(s *subscription) { s.DeadLetterPolicy = deadLetters("projects/p/topics/dead") },
		},
		{"push", []string{"push_config"}, &subscription{PushConfig: push()}, func(s *subscription) { s.PushConfig = push() }},
		{
			"export configs that are nowhere", []string{"bigquery_config", "cloud_storage_config", "bigtable_config", "message_transforms"},
			&subscription{},
			func(*subscription) {},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before, body := proto.CloneOf(current), proto.CloneOf(test.body)
			r := &pubsubpb.UpdateSubscriptionRequest{Subscription: test.body, UpdateMask: paths(test.mask...)}
			got, err := patchSubscription(current, r)
			if err != nil {
				t.Fatal(err)
			}
			checkMessage(t, got, with(proto.CloneOf(current), test.want))
			checkMessage(t, current, before)
			checkMessage(t, test.body, body)
		})
	}
}

// Invalid masks and results change nothing (A14, A15, A17, A21).
func TestPatchSubscriptionRefuses(t *testing.T) {
	type subscription = pubsubpb.Subscription
	const unknown = "Invalid update_mask provided in the UpdateSubscriptionRequest: "
	tests := []struct {
		name string
		mask *fieldmaskpb.FieldMask
		body *subscription
		code codes.Code
		text string
	}{
		{"A14 none", nil, nil, codes.InvalidArgument, "The update_mask in the UpdateSubscriptionRequest must be set"},
		{"A14 empty", paths(), nil, codes.InvalidArgument, "The update_mask in the UpdateSubscriptionRequest must be set"},
		{"A15 unknown", paths("nothing"), nil, codes.InvalidArgument, unknown + "nothing is not a known Subscription field"},
		{"A15 empty path", paths(""), nil, codes.InvalidArgument, "is not a known"},
		{"A15 camel case", paths("pushConfig"), nil, codes.InvalidArgument, unknown + "pushConfig is not a known"},
		{"A15 all", paths("*"), nil, codes.InvalidArgument, "* is not a known"},
		{"A15 unknown inside", paths("retry_policy.nothing"), nil, codes.InvalidArgument, "retry_policy.nothing is not a known"},
		{"A15 camel case inside", paths("retry_policy.minimumBackoff"), nil, codes.InvalidArgument, "is not a known"},
		{"A15 inside a scalar", paths("ack_deadline_seconds.x"), nil, codes.InvalidArgument, "is not a known"},
		{"A15 inside a map", paths("labels.a"), nil, codes.InvalidArgument, "is not a known"},
		{"A15 inside a map entry", paths("labels.key"), nil, codes.InvalidArgument, "is not a known"},
		{"A15 inside a duration", paths("expiration_policy.ttl.seconds"), nil, codes.InvalidArgument, "is not a known"},
		{"A15 dot at the end", paths("retry_policy."), nil, codes.InvalidArgument, "is not a known"},
		{"A17 name", paths("name"), nil, codes.InvalidArgument, "not mutable"},
		{"A17 topic", paths("topic"), nil, codes.InvalidArgument, "not mutable"},
		{
			"A17 filter, also to the same", paths("filter"), &subscription{Filter: "attributes:a"}, codes.InvalidArgument,
			"the 'filter' field in the Subscription is not mutable.",
		},
		{"A17 ordering", paths("enable_message_ordering"), nil, codes.InvalidArgument, "not mutable"},
		{"A17 state", paths("state"), nil, codes.InvalidArgument, "not mutable"},
		{"A17 detached", paths("detached"), nil, codes.InvalidArgument, "not mutable"},
		{"A17 topic's retention", paths("topic_message_retention_duration"), nil, codes.InvalidArgument, "not mutable"},
		{"A17 Analytics Hub", paths("analytics_hub_subscription_info.listing"), nil, codes.InvalidArgument, "not mutable"},
		{"A17 tags", paths("tags"), nil, codes.InvalidArgument, "not mutable"},
		{"A21", paths("labels", "filter"), &subscription{Labels: map[string]string{"a": "1"}}, codes.InvalidArgument, "'filter'"},
		{"D2", paths("ack_deadline_seconds"), &subscription{AckDeadlineSeconds: 9}, codes.InvalidArgument, "ack_deadline_seconds"},
		{
			"D6 with what is there", paths("message_retention_duration"),
			&subscription{MessageRetentionDuration: durationpb.New(20 * day)}, codes.InvalidArgument, "expiration_policy.ttl",
		},
		{"D18 with what is there", paths("push_config"), &subscription{PushConfig: push()}, codes.InvalidArgument, "exactly_once"},
		{
			"A3 deleted topic", paths("dead_letter_policy"),
			&subscription{DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: deletedTopic}}, codes.InvalidArgument, "dead_letter_topic",
		},
		{
			"A3 no topic", paths("dead_letter_policy.max_delivery_attempts"),
			&subscription{DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{MaxDeliveryAttempts: 5}}, codes.InvalidArgument, "dead_letter_topic",
		},
		{"P", paths("bigquery_config"), &subscription{BigqueryConfig: &pubsubpb.BigQueryConfig{}}, codes.InvalidArgument, "exactly_once"},
		{
			"P with exactly-once off", paths("bigquery_config", "enable_exactly_once_delivery"),
			&subscription{BigqueryConfig: &pubsubpb.BigQueryConfig{}}, codes.Unimplemented, "bigquery_config",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			current := with(plainSubscription(), func(s *subscription) {
				s.Filter, s.EnableExactlyOnceDelivery = "attributes:a", true
				s.ExpirationPolicy.Ttl = durationpb.New(8 * day)
			})
			before := proto.CloneOf(current)
			got, err := patchSubscription(current, &pubsubpb.UpdateSubscriptionRequest{Subscription: test.body, UpdateMask: test.mask})
			checkStatus(t, err, test.code, test.text)
			if got != nil {
				t.Errorf("patchSubscription() = %v, want nil", got)
			}
			checkMessage(t, current, before)
		})
	}
}

// patchTopic follows the rules A14–A17, A19 and A21.
func TestPatchTopic(t *testing.T) {
	type topic = pubsubpb.Topic
	settings := func(schema, last string) *pubsubpb.SchemaSettings {
		return &pubsubpb.SchemaSettings{Schema: schema, Encoding: pubsubpb.Encoding_JSON, LastRevisionId: last}
	}
	regions := &pubsubpb.MessageStoragePolicy{AllowedPersistenceRegions: []string{"r"}}
	current := &topic{
		Name: "projects/p/topics/abc", Labels: map[string]string{"a": "1"}, KmsKeyName: "k", MessageStoragePolicy: regions,
		MessageRetentionDuration: durationpb.New(time.Hour), SchemaSettings: settings(deletedSchema, ""), State: pubsubpb.Topic_ACTIVE,
	}
	before := proto.CloneOf(current)
	tests := []struct {
		name string
		mask *fieldmaskpb.FieldMask
		body *topic
		want func(*topic) // nil: refused
		text string       // of the error
	}{
		{
			"A16 all", paths("labels", "message_storage_policy", "message_retention_duration", "schema_settings"), &topic{},
			func(t *topic) {
				t.Labels, t.MessageStoragePolicy, t.MessageRetentionDuration, t.SchemaSettings = nil, nil, nil, nil
			}, "",
		},
		{
			"labels", paths("labels"), &topic{Labels: map[string]string{"b": "2"}},
			func(t *topic) { t.Labels = map[string]string{"b": "2"} }, "",
		},
		{
			"A19 inside schema_settings",
			paths("schema_settings.schema", "schema_settings.last_revision_id"), &topic{SchemaSettings: settings("projects/p/schemas/abc", "1")},
			func(t *topic) { t.SchemaSettings = settings("projects/p/schemas/abc", "1") }, "",
		},
		{"A19 what is left out, unset", paths("ingestion_data_source_settings", "message_transforms"), nil, func(*topic) {}, ""},
		{"A14", nil, &topic{}, nil, "The update_mask in the UpdateTopicRequest must be set"},
		{"A15", paths("schemaSettings"), &topic{}, nil, "schemaSettings is not a known Topic field"},
		{"A17 name", paths("name"), &topic{}, nil, "the 'name' field in the Topic is not mutable"},
		{"A17 state", paths("state"), &topic{}, nil, "not mutable"},
		{"A17 satisfies_pzs", paths("satisfies_pzs"), &topic{}, nil, "not mutable"},
		{"A19 kms", paths("kms_key_name"), &topic{KmsKeyName: "l"}, nil, "not mutable"},
		{"A21", paths("labels", "name"), &topic{}, nil, "not mutable"},
		{"C1", paths("message_retention_duration"), &topic{MessageRetentionDuration: durationpb.New(1)}, nil, "message_retention_duration"},
		{"M11", paths("schema_settings.encoding"), &topic{}, nil, "schema_settings.encoding"},
		{"A3", paths("schema_settings.schema"), &topic{SchemaSettings: settings("abc", "")}, nil, "(schema=abc)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := patchTopic(current, &pubsubpb.UpdateTopicRequest{Topic: test.body, UpdateMask: test.mask})
			if test.want == nil {
				checkStatus(t, err, codes.InvalidArgument, test.text)
			} else {
				checkStatus(t, err, codes.OK, "")
				checkMessage(t, got, with(proto.CloneOf(current), test.want))
			}
			checkMessage(t, current, before)
		})
	}
}

// patchSnapshot follows the rules A14–A17, A20 and A21.
func TestPatchSnapshot(t *testing.T) {
	type snapshot = pubsubpb.Snapshot
	early, late := &timestamppb.Timestamp{Seconds: 1}, &timestamppb.Timestamp{Seconds: 2}
	current := &snapshot{Name: "projects/p/snapshots/abc", Topic: deletedTopic, ExpireTime: late, Labels: map[string]string{"a": "1"}}
	before := proto.CloneOf(current)
	tests := []struct {
		name string
		mask *fieldmaskpb.FieldMask
		body *snapshot
		want func(*snapshot) // nil: refused
		text string          // of the error
	}{
		{"A16 labels", paths("labels"), &snapshot{}, func(s *snapshot) { s.Labels = nil }, ""},
		{"A20 expire_time", paths("expire_time"), &snapshot{ExpireTime: early}, func(s *snapshot) { s.ExpireTime = early }, ""},
		{"A20 no expire_time", paths("expire_time"), &snapshot{}, nil, "expire_time"},
		{"A14", nil, &snapshot{}, nil, "The update_mask in the UpdateSnapshotRequest must be set"},
		{"A15", paths("expireTime"), &snapshot{}, nil, "expireTime is not a known Snapshot field"},
		{"A15 inside a time", paths("expire_time.seconds"), &snapshot{ExpireTime: early}, nil, "is not a known"},
		{"A17", paths("labels", "topic"), &snapshot{}, nil, "the 'topic' field in the Snapshot is not mutable"},
		{"A22", paths("labels"), &snapshot{Labels: map[string]string{"A": ""}}, nil, "labels"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := patchSnapshot(current, &pubsubpb.UpdateSnapshotRequest{Snapshot: test.body, UpdateMask: test.mask})
			if test.want == nil {
				checkStatus(t, err, codes.InvalidArgument, test.text)
			} else {
				checkStatus(t, err, codes.OK, "")
				checkMessage(t, got, with(proto.CloneOf(current), test.want))
			}
			checkMessage(t, current, before)
		})
	}
}
