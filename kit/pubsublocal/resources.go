package pubsublocal

import (
	"slices"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

const (
	day = 24 * time.Hour

	minRetention     = 10 * time.Minute
	maxRetention     = 31 * day
	defaultRetention = 7 * day

	minAckDeadline     = 10 // seconds
	maxAckDeadline     = 600
	defaultAckDeadline = 10

	defaultExpiration = 31 * day

	defaultMinBackoff = 10 * time.Second
	defaultMaxBackoff = 600 * time.Second
	maxBackoff        = 600 * time.Second

	minDeliveryAttempts = 5 // also the default
	maxDeliveryAttempts = 100
)

// The fields that an update mask may name. All others are immutable, or set
// by the server (A17–A19).
var (
	mutableOfTopic        = []string{"labels", "message_storage_policy", "message_retention_duration", "schema_settings"}
	mutableOfSubscription = []string{
		"ack_deadline_seconds", "retain_acked_messages", "message_retention_duration", "labels", "expiration_policy",
		"dead_letter_policy", "retry_policy", "enable_exactly_once_delivery",
	}
)

// completeTopic checks a topic and sets its defaults in place, for create and update. It checks neither the name nor
// whether the schema exists. schema is the schema of the topic before an update. It may be deleted by now.
func completeTopic(t *pubsubpb.Topic, schema string) error {
	if d := t.GetMessageRetentionDuration(); d != nil { // C1
		if err := checkDuration("message_retention_duration", d, minRetention, maxRetention); err != nil {
			return err
		}
	}
	if s := t.GetSchemaSettings(); s != nil {
		if !isName(schemas, s.GetSchema()) && (s.GetSchema() != deletedSchema || schema != deletedSchema) { // A3, M18
			return invalidName("schema", s.GetSchema())
		}
		if s.GetEncoding() == pubsubpb.Encoding_ENCODING_UNSPECIFIED { // M11
			return invalidField("schema_settings.encoding", "must be set")
		}
	}
	t.State = pubsubpb.Topic_ACTIVE
	return checkUnimplemented(t, "ingestion_data_source_settings", "message_transforms", "tags")
}

// normalizeSubscription checks the body of a CreateSubscription, and sets
// defaults in place (D1). The caller checks its name, its topic, and whether
// topics exist. An error names the field: INVALID_ARGUMENT, or UNIMPLEMENTED for
// a feature that this server does not have.
func normalizeSubscription(s *pubsubpb.Subscription) error {
	// These fields are output only. A request with them is not an error (C4).
	s.Detached, s.TopicMessageRetentionDuration, s.AnalyticsHubSubscriptionInfo = false, nil, nil
	return completeSubscription(s, "")
}

// completeSubscription checks a subscription and sets its defaults, for create
// and update. deadLetterTopic is its dead-letter topic before an update, which
// may be deleted by now.
func completeSubscription(s *pubsubpb.Subscription, deadLetterTopic string) error {
	for _, step := range []func(*pubsubpb.Subscription) error{completeAckDeadline, completeLifetimes, completeRetryPolicy} {
		if err := step(s); err != nil {
			return err
		}
	}
	if err := completeDeadLetterPolicy(s.GetDeadLetterPolicy(), deadLetterTopic); err != nil {
		return err
	}
	s.State = pubsubpb.Subscription_ACTIVE
	if s.GetPushConfig().GetPushEndpoint() == "" {
		s.PushConfig = nil // gcloud sends an empty one
	}
	return checkUnimplemented(s, "push_config", "bigquery_config", "cloud_storage_config", "bigtable_config", "message_transforms", "tags", "filter")
}

func completeAckDeadline(s *pubsubpb.Subscription) error {
	switch deadline := s.GetAckDeadlineSeconds(); {
	case deadline == 0:
		s.AckDeadlineSeconds = defaultAckDeadline
	case deadline < minAckDeadline, deadline > maxAckDeadline: // D2
		return status.Errorf(codes.InvalidArgument, "The value for ack_deadline_seconds must be 0 or between %d and %d. You passed %d.",
			minAckDeadline, maxAckDeadline, deadline)
	}
	return nil
}

// completeLifetimes completes message retention (D4) and expiration. An expiration is stored, without effect.
func completeLifetimes(s *pubsubpb.Subscription) error {
	if s.GetMessageRetentionDuration() == nil {
		s.MessageRetentionDuration = durationpb.New(defaultRetention)
	}
	if s.GetExpirationPolicy() == nil {
		s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(defaultExpiration)}
	}
	return checkDuration("message_retention_duration", s.GetMessageRetentionDuration(), minRetention, maxRetention)
}

// completeRetryPolicy checks the retry policy, and sets its defaults (D9).
func completeRetryPolicy(s *pubsubpb.Subscription) error {
	p := s.GetRetryPolicy()
	if p == nil {
		return nil
	}
	if p.GetMinimumBackoff() == nil {
		p.MinimumBackoff = durationpb.New(defaultMinBackoff)
	}
	if p.GetMaximumBackoff() == nil {
		p.MaximumBackoff = durationpb.New(defaultMaxBackoff)
	}
	if err := checkDuration("retry_policy.minimum_backoff", p.GetMinimumBackoff(), 0, maxBackoff); err != nil {
		return err
	}
	if err := checkDuration("retry_policy.maximum_backoff", p.GetMaximumBackoff(), 0, maxBackoff); err != nil {
		return err
	}
	if p.GetMinimumBackoff().AsDuration() > p.GetMaximumBackoff().AsDuration() {
		return invalidField("retry_policy.minimum_backoff", "must not be more than maximum_backoff")
	}
	return nil
}

// completeDeadLetterPolicy checks the dead-letter topic (A3, K9) and the number
// of attempts (K2). before is the topic before an update.
func completeDeadLetterPolicy(p *pubsubpb.DeadLetterPolicy, before string) error {
	if p == nil {
		return nil
	}
	if topic := p.GetDeadLetterTopic(); !isName(topics, topic) && (topic != deletedTopic || before != deletedTopic) {
		return invalidName("dead_letter_topic", topic)
	}
	if p.GetMaxDeliveryAttempts() == 0 {
		p.MaxDeliveryAttempts = minDeliveryAttempts
	}
	if n := p.GetMaxDeliveryAttempts(); n < minDeliveryAttempts || n > maxDeliveryAttempts {
		return status.Errorf(codes.InvalidArgument,
			"The value for dead_letter_policy.max_delivery_attempts must be 0 or between %d and %d. You passed %d.",
			minDeliveryAttempts, maxDeliveryAttempts, n)
	}
	return nil
}

// updateRequest is an update request of any resource.
type updateRequest interface {
	proto.Message
	GetUpdateMask() *fieldmaskpb.FieldMask
}

// patch returns a copy of current with the fields of the mask taken from body
// (A16). A field that body does not have becomes unset. A path has one segment. complete checks the
// result and sets defaults. The errors have the same texts as in the service.
func patch[M proto.Message](current, body M, r updateRequest, mutable []string, complete func(M) error) (M, error) {
	var none M
	request, resource := r.ProtoReflect().Descriptor().Name(), current.ProtoReflect().Descriptor()
	paths := r.GetUpdateMask().GetPaths()
	if len(paths) == 0 { // A14
		return none, status.Errorf(codes.InvalidArgument,
			"The update_mask in the %s must be set, and must contain a non-empty paths list.", request)
	}
	next := proto.CloneOf(current)
	body = proto.CloneOf(body) // the result must not share memory with the request
	for _, path := range paths {
		field := resource.Fields().ByName(protoreflect.Name(path))
		if field == nil { // A15
			return none, status.Errorf(codes.InvalidArgument, "Invalid update_mask provided in the %s: %s is not a known %s field. "+
				"Note that field paths must be of the form 'push_config' rather than 'pushConfig'.", request, path, resource.Name())
		}
		if !slices.Contains(mutable, path) { // A17
			return none, status.Errorf(codes.InvalidArgument, "Invalid update_mask provided in the %s: the '%s' field in the %s is not mutable.",
				request, path, resource.Name())
		}
		if body.ProtoReflect().Has(field) {
			next.ProtoReflect().Set(field, body.ProtoReflect().Get(field))
		} else {
			next.ProtoReflect().Clear(field)
		}
	}
	if err := complete(next); err != nil {
		return none, err
	}
	return next, nil
}

func checkDuration(field string, d *durationpb.Duration, lowest, highest time.Duration) error {
	if d.CheckValid() != nil || d.AsDuration() < lowest || d.AsDuration() > highest {
		return status.Errorf(codes.InvalidArgument, "The value for %s must be between %v and %v. You passed %v.",
			field, lowest, highest, d.AsDuration())
	}
	return nil
}

// checkUnimplemented returns UNIMPLEMENTED if one of the fields is set. These
// features change what is delivered, so they cannot be ignored.
func checkUnimplemented(m proto.Message, names ...protoreflect.Name) error {
	fields := m.ProtoReflect().Descriptor().Fields()
	for _, name := range names {
		if field := fields.ByName(name); field != nil && m.ProtoReflect().Has(field) {
			return status.Errorf(codes.Unimplemented, "%s is not implemented by this server.", name)
		}
	}
	return nil
}

func invalidField(field, rule string) error {
	return status.Errorf(codes.InvalidArgument, "Invalid value for %s: %s.", field, rule)
}
