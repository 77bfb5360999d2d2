package pubsublocal

import (
	"strings"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The limits of the service: https://cloud.google.com/pubsub/quotas. Lengths
// are in bytes.
const (
	maxPublishMessages = 1000
	maxPublishSize     = 10_000_000
	maxAttributes      = 100
	maxAttributeKey    = 256
	maxAttributeValue  = 1024
	maxOrderingKey     = 1024
	maxAckRequestSize  = 524_288
	seeQuotas          = "Refer to https://cloud.google.com/pubsub/quotas for more information."
	reservedKeyPrefix  = "goog"
)

// checkPublish refuses a request that exceeds a limit or mixes ordering keys.
// One bad message fails the whole request (B1, B2, B5–B12, B14). size is the
// encoded size of the request. It allocates only for an error, because it runs
// for every published message.
func checkPublish(r *pubsubpb.PublishRequest, size int) error {
	messages := r.GetMessages()
	switch {
	case len(messages) == 0: // B5
		return status.Error(codes.InvalidArgument, "The request has no messages. A publish request must have at least one.")
	case len(messages) > maxPublishMessages: // B1
		return tooLarge("message_count", len(messages), maxPublishMessages)
	case size > maxPublishSize: // B2
		return tooLarge("request_size", size, maxPublishSize)
	}
	key := messages[0].GetOrderingKey()
	if len(key) > maxOrderingKey { // B12
		return status.Errorf(codes.InvalidArgument,
			"The ordering_key of a message is too long. The length is %d bytes, but the maximum allowed is %d. %s",
			len(key), maxOrderingKey, seeQuotas)
	}
	for _, m := range messages {
		if m.GetOrderingKey() != key { // B11
			return status.Error(codes.FailedPrecondition,
				"In a single publish request, all messages must have no ordering key or they must all have the same ordering key.")
		}
		attributes := m.GetAttributes()
		if len(m.GetData()) == 0 && len(attributes) == 0 { // B6
			return status.Error(codes.InvalidArgument,
				"One of the messages in the request is empty. A message must have data that is not empty, or at least one attribute.")
		}
		if len(attributes) > maxAttributes { // B7
			return status.Errorf(codes.InvalidArgument,
				"One of the messages in the request has too many attributes. You passed %d, but the maximum allowed is %d. %s",
				len(attributes), maxAttributes, seeQuotas)
		}
		for k, v := range attributes {
			if err := checkAttribute(k, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkAttribute(key, value string) error {
	switch {
	case key == "": // B8
		return status.Error(codes.InvalidArgument, "One of the attributes in the request has an empty key.")
	case len(key) > maxAttributeKey: // B8
		return attributeTooLong("key", len(key), maxAttributeKey)
	case len(value) > maxAttributeValue: // B9
		return attributeTooLong("value", len(value), maxAttributeValue)
	case len(key) >= len(reservedKeyPrefix) && strings.EqualFold(key[:len(reservedKeyPrefix)], reservedKeyPrefix) && !isTraceKey(key): // B10
		return status.Errorf(codes.InvalidArgument,
			"The attribute %q in the request has a key that starts with %q, which is reserved.", key, reservedKeyPrefix)
	}
	return nil
}

// isTraceKey reports whether Google's client libraries add this attribute to
// propagate a trace. Only older Node.js libraries add the last one.
func isTraceKey(key string) bool {
	switch key {
	case "googclient_traceparent", "googclient_tracestate", "googclient_OpenTelemetrySpanContext":
		return true
	default:
		return false
	}
}

func tooLarge(what string, got, limit int) error {
	return status.Errorf(codes.InvalidArgument,
		"The value for %s is too large. You passed %d in the request, but the maximum value is %d.", what, got, limit)
}

// attributeTooLong returns the error for a long key or value. Like the service,
// it says characters but counts bytes.
func attributeTooLong(what string, got, limit int) error {
	return status.Errorf(codes.InvalidArgument,
		"One of the attributes in the request has a %s that is too long. The length is %d characters, but the maximum allowed is %d. %s",
		what, got, limit, seeQuotas)
}
