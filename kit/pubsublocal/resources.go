package pubsublocal

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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

	minAckDeadline         = 10 // seconds
	maxAckDeadline         = 600
	defaultAckDeadline     = 10
	exactlyOnceAckDeadline = 60

	minExpiration     = day
	defaultExpiration = 31 * day

	defaultMinBackoff = 10 * time.Second
	defaultMaxBackoff = 600 * time.Second
	maxBackoff        = 600 * time.Second

	minDeliveryAttempts = 5 // also the default
	maxDeliveryAttempts = 100

	maxLabels   = 64
	maxLabelLen = 63 // characters
)

// The fields that an update mask may name, including the fields inside them. All
// others are immutable or output only (A17–A20).
var (
	mutableOfTopic = []protoreflect.Name{
		"labels", "message_storage_policy", "message_retention_duration", "schema_settings",
		"ingestion_data_source_settings", "message_transforms",
	}
	mutableOfSubscription = []protoreflect.Name{
		"ack_deadline_seconds", "retain_acked_messages", "message_retention_duration", "labels", "expiration_policy",
		"dead_letter_policy", "retry_policy", "enable_exactly_once_delivery", "push_config", "bigquery_config",
		"cloud_storage_config", "bigtable_config", "message_transforms",
	}
	mutableOfSnapshot = []protoreflect.Name{"labels", "expire_time"}
)

// normalizeTopic checks the body of a CreateTopic, and sets defaults in place.
// It checks neither the name nor whether the schema exists. An error is
// INVALID_ARGUMENT, or UNIMPLEMENTED for a feature that this server does not
// have. It names the field.
func normalizeTopic(t *pubsubpb.Topic) error {
	t.SatisfiesPzs = false // output only
	return completeTopic(t, "")
}

// completeTopic does what create and update have in common. schema is the schema
// of the topic before an update. It may be deleted by now.
func completeTopic(t *pubsubpb.Topic, schema string) error {
	if err := checkLabels(t.GetLabels()); err != nil {
		return err
	}
	if p := t.GetMessageStoragePolicy(); p != nil && len(p.GetAllowedPersistenceRegions()) == 0 {
		return invalidField("message_storage_policy.allowed_persistence_regions", "must not be empty")
	}
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
// defaults in place (D1). It checks neither names nor whether topics exist. An
// error is INVALID_ARGUMENT, or UNIMPLEMENTED for a feature that this server
// does not have. It names the field.
func normalizeSubscription(s *pubsubpb.Subscription) error {
	// These fields are output only. A request with them is not an error (C4).
	s.Detached, s.TopicMessageRetentionDuration, s.AnalyticsHubSubscriptionInfo = false, nil, nil
	return completeSubscription(s, "")
}

// completeSubscription checks a subscription and sets its defaults, for create
// and update. deadLetterTopic is its dead-letter topic before an update, which
// may be deleted by now.
func completeSubscription(s *pubsubpb.Subscription, deadLetterTopic string) error {
	for _, step := range []func(*pubsubpb.Subscription) error{completeDelivery, completeAckDeadline, completeLifetimes, completeRetryPolicy} {
		if err := step(s); err != nil {
			return err
		}
	}
	if err := completeDeadLetterPolicy(s.GetDeadLetterPolicy(), deadLetterTopic); err != nil {
		return err
	}
	if err := checkLabels(s.GetLabels()); err != nil {
		return err
	}
	if _, err := parseFilter(s.GetFilter()); err != nil {
		return err
	}
	s.State = pubsubpb.Subscription_ACTIVE
	return checkUnimplemented(s, "bigquery_config", "cloud_storage_config", "bigtable_config", "message_transforms", "tags")
}

// completeDelivery checks that there is only one way of delivery (D17), and that
// it allows exactly-once (D18).
func completeDelivery(s *pubsubpb.Subscription) error {
	var ways []string
	if s.GetPushConfig().GetPushEndpoint() != "" {
		ways = append(ways, "push_config")
	}
	if s.GetBigqueryConfig() != nil {
		ways = append(ways, "bigquery_config")
	}
	if s.GetCloudStorageConfig() != nil {
		ways = append(ways, "cloud_storage_config")
	}
	if s.GetBigtableConfig() != nil {
		ways = append(ways, "bigtable_config")
	}
	if len(ways) > 1 {
		return status.Errorf(codes.InvalidArgument, "At most one of %s may be set.", strings.Join(ways, " and "))
	}
	if len(ways) == 1 && s.GetEnableExactlyOnceDelivery() {
		return invalidField("enable_exactly_once_delivery", "must be false with "+ways[0])
	}
	if s.GetPushConfig() == nil {
		s.PushConfig = &pubsubpb.PushConfig{}
	}
	return nil
}

func completeAckDeadline(s *pubsubpb.Subscription) error {
	switch deadline := s.GetAckDeadlineSeconds(); {
	case deadline == 0 && s.GetEnableExactlyOnceDelivery(): // D3
		s.AckDeadlineSeconds = exactlyOnceAckDeadline
	case deadline == 0:
		s.AckDeadlineSeconds = defaultAckDeadline
	case deadline < minAckDeadline, deadline > maxAckDeadline: // D2
		return status.Errorf(codes.InvalidArgument, "The value for ack_deadline_seconds must be 0 or between %d and %d. You passed %d.",
			minAckDeadline, maxAckDeadline, deadline)
	}
	return nil
}

// completeLifetimes completes message retention (D4) and expiration (D5–D7).
func completeLifetimes(s *pubsubpb.Subscription) error {
	if s.GetMessageRetentionDuration() == nil {
		s.MessageRetentionDuration = durationpb.New(defaultRetention)
	}
	retention := s.GetMessageRetentionDuration()
	if err := checkDuration("message_retention_duration", retention, minRetention, maxRetention); err != nil {
		return err
	}
	if s.GetExpirationPolicy() == nil {
		s.ExpirationPolicy = &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(defaultExpiration)}
	}
	ttl := s.GetExpirationPolicy().GetTtl()
	switch {
	case ttl == nil: // the subscription never expires: D7
		return nil
	case ttl.CheckValid() != nil:
		return invalidField("expiration_policy.ttl", "must be a valid duration")
	case ttl.AsDuration() < minExpiration:
		return invalidField("expiration_policy.ttl", "must be at least "+minExpiration.String())
	case ttl.AsDuration() < retention.AsDuration():
		return invalidField("expiration_policy.ttl", "must be at least message_retention_duration, which is "+retention.AsDuration().String())
	}
	return nil
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

// patchTopic returns a copy of current with the changes of the request, with the
// same defaults as after normalizeTopic (A14–A17, A19, A21).
func patchTopic(current *pubsubpb.Topic, r *pubsubpb.UpdateTopicRequest) (*pubsubpb.Topic, error) {
	return patch(current, r.GetTopic(), r, mutableOfTopic, func(next *pubsubpb.Topic) error {
		return completeTopic(next, current.GetSchemaSettings().GetSchema())
	})
}

// patchSubscription returns a copy of current with the changes of the request,
// with the same defaults as after normalizeSubscription (A14–A18, A21).
func patchSubscription(current *pubsubpb.Subscription, r *pubsubpb.UpdateSubscriptionRequest) (*pubsubpb.Subscription, error) {
	return patch(current, r.GetSubscription(), r, mutableOfSubscription, func(next *pubsubpb.Subscription) error {
		return completeSubscription(next, current.GetDeadLetterPolicy().GetDeadLetterTopic())
	})
}

// patchSnapshot returns a copy of current with the changes of the request (A20).
// A mask with expire_time needs the time in the body, because its default is
// known only when a snapshot is created. The caller checks whether the time is
// in bounds.
func patchSnapshot(current *pubsubpb.Snapshot, r *pubsubpb.UpdateSnapshotRequest) (*pubsubpb.Snapshot, error) {
	return patch(current, r.GetSnapshot(), r, mutableOfSnapshot, func(next *pubsubpb.Snapshot) error {
		if next.GetExpireTime().CheckValid() != nil { // nil is not valid, either
			return invalidField("expire_time", "must be a valid time")
		}
		return checkLabels(next.GetLabels())
	})
}

// updateRequest is an update request of any resource.
type updateRequest interface {
	proto.Message
	GetUpdateMask() *fieldmaskpb.FieldMask
}

// patch returns a copy of current with the fields of the mask taken from body
// (A16). A field that body does not have becomes unset. complete checks the
// result and sets defaults. The errors have the same texts as in the service.
func patch[M proto.Message](current, body M, r updateRequest, mutable []protoreflect.Name, complete func(M) error) (M, error) {
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
		fields, ok := resolvePath(resource, path)
		if !ok { // A15
			return none, status.Errorf(codes.InvalidArgument, "Invalid update_mask provided in the %s: %s is not a known %s field. "+
				"Note that field paths must be of the form 'push_config' rather than 'pushConfig'.", request, path, resource.Name())
		}
		if !slices.Contains(mutable, fields[0].Name()) { // A17
			return none, status.Errorf(codes.InvalidArgument, "Invalid update_mask provided in the %s: the '%s' field in the %s is not mutable.",
				request, path, resource.Name())
		}
		copyField(next.ProtoReflect(), body.ProtoReflect(), fields)
	}
	if err := complete(next); err != nil {
		return none, err
	}
	return next, nil
}

// resolvePath returns the fields of a path such as retry_policy.minimum_backoff.
// A path may only enter messages of Pub/Sub, so not a duration or a map.
func resolvePath(d protoreflect.MessageDescriptor, path string) (fields []protoreflect.FieldDescriptor, ok bool) {
	pubsub := d.ParentFile().Package()
	for name := range strings.SplitSeq(path, ".") {
		if d == nil || d.ParentFile().Package() != pubsub {
			return nil, false
		}
		field := d.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return nil, false
		}
		fields = append(fields, field)
		d = nil
		if field.Cardinality() != protoreflect.Repeated {
			d = field.Message()
		}
	}
	return fields, true
}

// copyField sets the last field of a path in dst to its value in src. It does
// not create a message in dst only to clear a field of it.
func copyField(dst, src protoreflect.Message, path []protoreflect.FieldDescriptor) {
	field := path[0]
	switch {
	case len(path) > 1 && (src.Has(field) || dst.Has(field)):
		copyField(dst.Mutable(field).Message(), src.Get(field).Message(), path[1:])
	case src.Has(field):
		dst.Set(field, src.Get(field))
	default:
		dst.Clear(field)
	}
}

// checkLabels checks the rules for labels (A22).
func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return status.Errorf(codes.InvalidArgument, "There are too many labels. You passed %d, but the maximum allowed is %d.",
			len(labels), maxLabels)
	}
	for key, value := range labels {
		if first, _ := utf8.DecodeRuneInString(key); !isLabelLetter(first) || !isLabel(key) {
			return invalidField("labels", "have the key "+key+", which breaks the rule: it starts with a lower-case letter "+
				"and has at most 63 lower-case letters, digits, - and _")
		}
		if !isLabel(value) {
			return invalidField("labels", "have the value "+value+", which breaks the rule: at most 63 lower-case letters, digits, - and _")
		}
	}
	return nil
}

func isLabel(s string) bool {
	return utf8.RuneCountInString(s) <= maxLabelLen && !strings.ContainsFunc(s, func(r rune) bool {
		return !isLabelLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_'
	})
}

// isLabelLetter accepts letters of all scripts, as Google Cloud does. Letters
// without case count as lower case.
func isLabelLetter(r rune) bool { return unicode.IsLower(r) || unicode.Is(unicode.Lo, r) }

func isName(c collection, name string) bool {
	_, _, ok := splitName(c, name)
	return ok
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
