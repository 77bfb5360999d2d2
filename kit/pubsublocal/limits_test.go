package pubsublocal

import (
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
)

func repeatMessage(n int, m *pubsubpb.PubsubMessage) []*pubsubpb.PubsubMessage {
	messages := make([]*pubsubpb.PubsubMessage, n)
	for i := range messages {
		messages[i] = m
	}
	return messages
}

func numberedAttributes(n int) map[string]string {
	attributes := make(map[string]string, n)
	for i := range n {
		attributes[fmt.Sprintf("key-%d", i)] = "value"
	}
	return attributes
}

// Each limit of a publish request is tested at the limit and one over it.
func TestCheckPublish(t *testing.T) {
	data := []byte("x")
	one := &pubsubpb.PubsubMessage{Data: data}
	keyed := func(key string) *pubsubpb.PubsubMessage { return &pubsubpb.PubsubMessage{Data: data, OrderingKey: key} }
	with := func(key, value string) []*pubsubpb.PubsubMessage {
		return []*pubsubpb.PubsubMessage{one, {Attributes: map[string]string{key: value}}} // the first message is good: B14
	}
	const mixed = "In a single publish request, all messages must have no ordering key or they must all have the same ordering key."
	tests := []struct {
		name     string
		messages []*pubsubpb.PubsubMessage
		size     int
		code     codes.Code
		text     string
	}{
		{"B1 1000 messages", repeatMessage(1000, one), 0, codes.OK, ""},
		{
			"B1 1001 messages", repeatMessage(1001, one), 0, codes.InvalidArgument,
			"The value for message_count is too large. You passed 1001 in the request, but the maximum value is 1000.",
		},
		{"B4 10 MB", repeatMessage(1, one), 10_000_000, codes.OK, ""},
		{
			"B2 over 10 MB", repeatMessage(1, one), 10_000_001, codes.InvalidArgument,
			"The value for request_size is too large. You passed 10000001 in the request, but the maximum value is 10000000.",
		},
		{"B5 no messages", nil, 0, codes.InvalidArgument, "no messages"},
		{"B6 attributes only", with("a", ""), 0, codes.OK, ""},
		{"B6 empty", []*pubsubpb.PubsubMessage{one, {}}, 0, codes.InvalidArgument, "empty"},
		{"B6 key only", []*pubsubpb.PubsubMessage{{OrderingKey: "k"}}, 0, codes.InvalidArgument, "empty"},
		{"B6 nil", []*pubsubpb.PubsubMessage{nil}, 0, codes.InvalidArgument, "empty"},
		{"B7 100 attributes", []*pubsubpb.PubsubMessage{{Attributes: numberedAttributes(100)}}, 0, codes.OK, ""},
		{"B7 101 attributes", []*pubsubpb.PubsubMessage{{Attributes: numberedAttributes(101)}}, 0, codes.InvalidArgument, "passed 101"},
		{"B8 key of 256", with(strings.Repeat("k", 256), "v"), 0, codes.OK, ""},
		{"B8 key of 257", with(strings.Repeat("k", 257), "v"), 0, codes.InvalidArgument, "a key that is too long. The length is 257"},
		{"B8 bytes, not letters", with(strings.Repeat("ä", 129), "v"), 0, codes.InvalidArgument, "a key that is too long. The length is 258"},
		{"B8 empty key", with("", "v"), 0, codes.InvalidArgument, "empty key"},
		{"B9 value of 1024", with("k", strings.Repeat("v", 1024)), 0, codes.OK, ""},
		{
			"B9 value of 1025", with("k", strings.Repeat("v", 1025)), 0, codes.InvalidArgument,
			"One of the attributes in the request has a value that is too long.",
		},
		{"B9 bytes, not letters", with("k", strings.Repeat("ä", 513)), 0, codes.InvalidArgument, "The length is 1026"},
		{"B10 goog", with("goog", "v"), 0, codes.InvalidArgument, `"goog"`},
		{"B10 GooGle", with("GooGle", "v"), 0, codes.InvalidArgument, `"GooGle"`},
		{"B10 trace", with("googclient_traceparent", "v"), 0, codes.OK, ""},
		{"B10 trace in capitals", with("GOOGCLIENT_TRACEPARENT", "v"), 0, codes.InvalidArgument, "GOOGCLIENT"},
		{"B10 goo", with("goo", "v"), 0, codes.OK, ""},
		{"B10 not at the start", with("agoog", "v"), 0, codes.OK, ""},
		{"B11 one key", []*pubsubpb.PubsubMessage{keyed("a"), keyed("a")}, 0, codes.OK, ""},
		{"B11 two keys", []*pubsubpb.PubsubMessage{keyed("a"), keyed("b")}, 0, codes.FailedPrecondition, mixed},
		{"B11 empty after key", []*pubsubpb.PubsubMessage{keyed("a"), one}, 0, codes.FailedPrecondition, mixed},
		{"B11 key after empty", []*pubsubpb.PubsubMessage{one, one, keyed("a")}, 0, codes.FailedPrecondition, mixed},
		{"B12 key of 1024", repeatMessage(2, keyed(strings.Repeat("k", 1024))), 0, codes.OK, ""},
		{"B12 key of 1025", repeatMessage(2, keyed(strings.Repeat("k", 1025))), 0, codes.InvalidArgument, "ordering_key"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkStatus(t, checkPublish(&pubsubpb.PublishRequest{Messages: test.messages}, test.size), test.code, test.text)
		})
	}
}

// checkPublish runs for every message, so for a good request it must not allocate.
func TestCheckPublishDoesNotAllocate(t *testing.T) {
	r := &pubsubpb.PublishRequest{
		Messages: repeatMessage(1000, &pubsubpb.PubsubMessage{Data: []byte("x"), Attributes: numberedAttributes(5), OrderingKey: "k"}),
	}
	if got := testing.AllocsPerRun(10, func() {
		if err := checkPublish(r, 100_000); err != nil {
			t.Error(err)
		}
	}); got != 0 {
		t.Errorf("checkPublish() makes %v allocations, want 0", got)
	}
}

// H10: 524,288 bytes are accepted, and one more is refused.
func TestCheckAckRequest(t *testing.T) {
	checkStatus(t, checkAckRequest(524_288), codes.OK, "")
	checkStatus(t, checkAckRequest(524_289), codes.InvalidArgument, "Request payload size exceeds the limit: 524288 bytes.")
}
