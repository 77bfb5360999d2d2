package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var publish = []Case{
	{ID: "B1", Sentence: "A request has at most 1,000 messages.", Run: messageCount},
	{ID: "B2", Sentence: "A request of more than 10,000,000 bytes is INVALID_ARGUMENT.", Run: requestTooLarge},
	{ID: "B3", Sentence: "A body of more than 10 MiB is INVALID_ARGUMENT, not RESOURCE_EXHAUSTED.", Run: bodyTooLarge},
	{ID: "B4", Sentence: "A request of exactly 10,000,000 bytes is accepted.", Run: largestRequest},
	{ID: "B5", Sentence: "A request without messages is refused.", Run: noMessages},
	{ID: "B6", Sentence: "A message has data or attributes.", Run: emptyMessage},
	{ID: "B7", Sentence: "A message has at most 100 attributes.", Run: attributeCount},
	{ID: "B8", Sentence: "An attribute key has 1 to 256 bytes.", Run: attributeKeys},
	{ID: "B9", Sentence: "An attribute value has at most 1,024 bytes.", Run: attributeValues},
	{ID: "B10", Sentence: "An attribute key does not start with goog, except the keys that client libraries add for tracing.", Run: attributesOfGoogle},
	{ID: "B11", Sentence: "The messages of a request have the same ordering key, or none has one.", Run: mixedKeys},
	{ID: "B12", Sentence: "An ordering key has at most 1,024 bytes.", Run: orderingKeys},
	{ID: "B13", Sentence: "An unordered subscription delivers messages with a key without order.", Run: keysWithoutOrder},
	{ID: "B14", Sentence: "One bad message refuses the whole request.", Run: oneBadMessage},
	{ID: "B15", Sentence: "Ids are decimal, unique and increasing, one for each message in the order of the request.", Run: messageIDs},
	{ID: "B16", Sentence: "Id and time from the publisher are overwritten.", Run: idFromPublisher},
	{ID: "B17", Sentence: "The publish time is that of the server, in milliseconds, the same everywhere, never decreasing.", Run: publishTimes},
	{ID: "B18", Sentence: "A message without a subscription is lost.", Run: noSubscription},
	{ID: "B19", Sentence: "A subscription gets what is published after its creation.", Run: afterCreation},
	{ID: "B20", Sentence: "The same content twice is two messages.", Run: sameContent},
	{ID: "B21", Sentence: "Publishing to a topic that is not there is NOT_FOUND.", Run: publishWithoutTopic},
	{ID: "B22", Sentence: "Messages arrive byte for byte.", Run: byteForByte},
}

// publishOnce sends one request, without retries.
func publishOnce(t *testing.T, e *Env, topic string, messages ...*pubsubpb.PubsubMessage) ([]string, error) {
	t.Helper()
	response, err := e.Topics.Publish(t.Context(), &pubsubpb.PublishRequest{Topic: topic, Messages: messages}, singleTry)
	return response.GetMessageIds(), err
}

// publishTest is a request, and its expected result.
type publishTest struct {
	name     string
	messages []*pubsubpb.PubsubMessage
	want     codes.Code
	text     string // of the error
}

// runPublishTests publishes all requests, and checks that exactly the accepted messages are
// delivered.
func runPublishTests(t *testing.T, e *Env, tests []publishTest) {
	t.Helper()
	topic, sub := e.Subscribed(t)
	var accepted []string
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ids, err := publishOnce(t, e, topic, test.messages...)
			if test.text == "" {
				WantCode(t, err, test.want)
			} else {
				WantCode(t, err, test.want, test.text)
			}
			accepted = append(accepted, ids...)
		})
	}
	wantMessageIDs(t, e, sub, accepted)
}

func wantMessageIDs(t *testing.T, e *Env, sub string, want []string) {
	t.Helper()
	var got []string
	for _, m := range collect(t, e, sub, len(want)) {
		got = append(got, m.GetMessage().GetMessageId())
	}
	wantEqual(t, slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got)), "delivered ids")
}

// sized returns a request of exactly this many encoded bytes, in n messages.
func sized(topic string, bytes, n int) *pubsubpb.PublishRequest {
	request := &pubsubpb.PublishRequest{Topic: topic}
	for range n {
		request.Messages = append(request.Messages, &pubsubpb.PubsubMessage{Data: make([]byte, bytes/n-100)})
	}
	last := request.Messages[n-1]
	last.Data = make([]byte, len(last.Data)+bytes-proto.Size(request))
	return request
}

// withAttribute returns a message with one attribute.
func withAttribute(key, value string) []*pubsubpb.PubsubMessage {
	return []*pubsubpb.PubsubMessage{{Data: []byte("x"), Attributes: map[string]string{key: value}}}
}

// withKeys returns a message per key.
func withKeys(keys ...string) (messages []*pubsubpb.PubsubMessage) {
	for _, key := range keys {
		messages = append(messages, &pubsubpb.PubsubMessage{Data: []byte("x"), OrderingKey: key})
	}
	return messages
}

// manyAttributes returns n attributes.
func manyAttributes(n int) map[string]string {
	attributes := map[string]string{}
	for i := range n {
		attributes["k"+strconv.Itoa(i)] = "v"
	}
	return attributes
}

func messageCount(t *testing.T, e *Env) {
	runPublishTests(t, e, []publishTest{
		{"1000", withKeys(make([]string, 1000)...), codes.OK, ""},
		{"1001", withKeys(make([]string, 1001)...), codes.InvalidArgument,
			"The value for message_count is too large. You passed 1001 in the request, but the maximum value is 1000."},
		{"5000", withKeys(make([]string, 5000)...), codes.InvalidArgument,
			"The value for message_count is too large. You passed 5000 in the request, but the maximum value is 1000."},
	})
}

func requestTooLarge(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	for _, test := range []struct{ bytes, messages int }{{10_000_001, 1}, {10_000_001, 100}, {10_485_760, 1}} {
		t.Run(fmt.Sprintf("%d bytes, %d messages", test.bytes, test.messages), func(t *testing.T) {
			_, err := e.Topics.Publish(t.Context(), sized(topic, test.bytes, test.messages), singleTry)
			WantCode(t, err, codes.InvalidArgument, "The value for request_size is too large.")
		})
	}
	wantTexts(t, e, sub)
}

func bodyTooLarge(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	for _, bytes := range []int{10_485_761, 24 << 20} {
		t.Run(strconv.Itoa(bytes), func(t *testing.T) {
			_, err := e.Topics.Publish(t.Context(), sized(topic, bytes, 1), singleTry)
			WantCode(t, err, codes.InvalidArgument, "Request payload size exceeds the limit: 10485760 bytes.")
		})
	}
	wantTexts(t, e, sub)
}

func largestRequest(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	for _, n := range []int{1, 100} {
		t.Run(fmt.Sprintf("%d messages", n), func(t *testing.T) {
			response, err := e.Topics.Publish(t.Context(), sized(topic, 10_000_000, n), singleTry)
			must(t, err)
			wantMessageIDs(t, e, sub, response.GetMessageIds())
		})
	}
}

func noMessages(t *testing.T, e *Env) {
	WantCode(t, errOf(publishOnce(t, e, e.Topic(t))), codes.InvalidArgument)
}

func emptyMessage(t *testing.T, e *Env) {
	runPublishTests(t, e, []publishTest{
		{"nothing", []*pubsubpb.PubsubMessage{{}}, codes.InvalidArgument, ""},
		{"key alone", []*pubsubpb.PubsubMessage{{OrderingKey: "k"}}, codes.InvalidArgument, ""},
		{"id and time alone", []*pubsubpb.PubsubMessage{
			{MessageId: "1", PublishTime: timestamppb.Now()},
		}, codes.InvalidArgument, ""},
		{"data alone", []*pubsubpb.PubsubMessage{{Data: []byte{0}}}, codes.OK, ""},
		{"attribute alone", []*pubsubpb.PubsubMessage{{Attributes: map[string]string{"a": ""}}}, codes.OK, ""},
	})
}

func attributeCount(t *testing.T, e *Env) {
	runPublishTests(t, e, []publishTest{
		{"100", []*pubsubpb.PubsubMessage{{Attributes: manyAttributes(100)}}, codes.OK, ""},
		{"101", []*pubsubpb.PubsubMessage{{Attributes: manyAttributes(101)}}, codes.InvalidArgument, ""},
		{"101 with data", []*pubsubpb.PubsubMessage{{Data: []byte("x"), Attributes: manyAttributes(101)}}, codes.InvalidArgument, ""},
		{"60 on each of two", []*pubsubpb.PubsubMessage{
			{Attributes: manyAttributes(60)}, {Attributes: manyAttributes(60)},
		}, codes.OK, ""},
	})
}

func attributeKeys(t *testing.T, e *Env) {
	runPublishTests(t, e, []publishTest{
		{"one byte", withAttribute("k", "v"), codes.OK, ""},
		{"256 bytes", withAttribute(strings.Repeat("k", 256), "v"), codes.OK, ""},
		{"256 bytes in 128 characters", withAttribute(strings.Repeat("é", 128), "v"), codes.OK, ""},
		{"257 bytes", withAttribute(strings.Repeat("k", 257), "v"), codes.InvalidArgument, ""},
		{"258 bytes in 129 characters", withAttribute(strings.Repeat("é", 129), "v"), codes.InvalidArgument, ""},
		{"empty", withAttribute("", "v"), codes.InvalidArgument, ""},
	})
}

func attributeValues(t *testing.T, e *Env) {
	const text = "One of the attributes in the request has a value that is too long."
	runPublishTests(t, e, []publishTest{
		{"empty", withAttribute("k", ""), codes.OK, ""},
		{"1024 bytes", withAttribute("k", strings.Repeat("v", 1024)), codes.OK, ""},
		{"1024 bytes in 512 characters", withAttribute("k", strings.Repeat("é", 512)), codes.OK, ""},
		{"1025 bytes", withAttribute("k", strings.Repeat("v", 1025)), codes.InvalidArgument, text},
		{"1026 bytes in 513 characters", withAttribute("k", strings.Repeat("é", 513)), codes.InvalidArgument, text},
	})
}

func attributesOfGoogle(t *testing.T, e *Env) {
	runPublishTests(t, e, []publishTest{
		{"goog", withAttribute("goog", "v"), codes.InvalidArgument, ""},
		{"start", withAttribute("googclient_x", "v"), codes.InvalidArgument, ""},
		{"longer than a trace's", withAttribute("googclient_traceparent2", "v"), codes.InvalidArgument, ""},
		{"trace", withAttribute("googclient_traceparent", "v"), codes.OK, ""},
		{"state of a trace", withAttribute("googclient_tracestate", "v"), codes.OK, ""},
		{"trace of an older Node.js library", withAttribute("googclient_OpenTelemetrySpanContext", "v"), codes.OK, ""},
		{"capitals", withAttribute("GOOGx", "v"), codes.InvalidArgument, ""},
		{"mixed", withAttribute("gOoGle", "v"), codes.InvalidArgument, ""},
		{"inside", withAttribute("x-goog", "v"), codes.OK, ""},
		{"shorter", withAttribute("goo", "v"), codes.OK, ""},
		{"value", withAttribute("k", "goog"), codes.OK, ""},
	})
}

func mixedKeys(t *testing.T, e *Env) {
	const text = "In a single publish request, all messages must have no ordering key or they must all have the same ordering key."
	runPublishTests(t, e, []publishTest{
		{"two keys", withKeys("a", "b"), codes.FailedPrecondition, text},
		{"other key last", withKeys("a", "a", "b"), codes.FailedPrecondition, text},
		{"none first", withKeys("", "a"), codes.FailedPrecondition, text},
		{"none last", withKeys("a", ""), codes.FailedPrecondition, text},
		{"none in the middle", withKeys("a", "", "a"), codes.FailedPrecondition, text},
		{"differing in case", withKeys("a", "A"), codes.FailedPrecondition, text},
		{"same key", withKeys("a", "a"), codes.OK, ""},
		{"no key", withKeys("", ""), codes.OK, ""},
	})
}

func orderingKeys(t *testing.T, e *Env) {
	runPublishTests(t, e, []publishTest{
		{"1024 bytes", withKeys(strings.Repeat("k", 1024)), codes.OK, ""},
		{"1024 bytes in 512 characters", withKeys(strings.Repeat("é", 512)), codes.OK, ""},
		{"1025 bytes", withKeys(strings.Repeat("k", 1025)), codes.InvalidArgument, ""},
		{"1026 bytes in 513 characters", withKeys(strings.Repeat("é", 513)), codes.InvalidArgument, ""},
	})
}

func keysWithoutOrder(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	e.Publish(t, topic, "k", "1")
	first := wantTexts(t, e, sub, "1")
	// An ordered subscription would deliver 2 and 3 only after the ack of 1.
	e.Publish(t, topic, "k", "2", "3")
	rest := wantTexts(t, e, sub, "2", "3")
	e.Nack(t, sub, first...)
	again := wantTexts(t, e, sub, "1")
	for _, m := range slices.Concat(first, rest, again) {
		wantEqual(t, "k", m.GetMessage().GetOrderingKey(), "key of message %q", m.GetMessage().GetData())
	}
}

func oneBadMessage(t *testing.T, e *Env) {
	good := &pubsubpb.PubsubMessage{Data: []byte("good")}
	var tests []publishTest
	bad := map[string]*pubsubpb.PubsubMessage{
		"empty":               {},
		"too many attributes": {Attributes: manyAttributes(101)},
		"long key":            {Attributes: map[string]string{strings.Repeat("k", 257): "v"}},
		"long value":          {Attributes: map[string]string{"k": strings.Repeat("v", 1025)}},
		"key of Google":       {Attributes: map[string]string{"google": "v"}},
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		tests = append(tests,
			publishTest{name + ", first", []*pubsubpb.PubsubMessage{bad[name], good, good}, codes.InvalidArgument, ""},
			publishTest{name + ", last", []*pubsubpb.PubsubMessage{good, good, bad[name]}, codes.InvalidArgument, ""})
	}
	tests = append(tests,
		publishTest{"other key last", withKeys("a", "a", "b"), codes.FailedPrecondition, ""},
		publishTest{"only good ones", []*pubsubpb.PubsubMessage{good, good}, codes.OK, ""})
	runPublishTests(t, e, tests)
}

func messageIDs(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	textOf := map[string]string{}
	last := uint64(0)
	take := func(t *testing.T, ids, texts []string) {
		t.Helper()
		if len(ids) != len(texts) {
			t.Fatalf("got %d ids for %d messages", len(ids), len(texts))
		}
		for i, id := range ids {
			n, err := strconv.ParseUint(id, 10, 64)
			if err != nil || strconv.FormatUint(n, 10) != id {
				t.Errorf("got id %q, want a decimal number", id)
			}
			if n <= last {
				t.Errorf("got id %d after %d, want them to increase", n, last)
			}
			last = n
			textOf[id] = texts[i]
		}
	}
	for i, n := range []int{1, 1, 12, 100, 1} {
		var texts []string
		for j := range n {
			texts = append(texts, fmt.Sprintf("%d-%d", i, j))
		}
		take(t, e.Publish(t, topic, "", texts...), texts)
	}
	got := map[string]string{}
	for _, m := range collect(t, e, sub, len(textOf)) {
		got[m.GetMessage().GetMessageId()] = string(m.GetMessage().GetData())
	}
	wantEqual(t, textOf, got, "texts by id")

	// With several publishers at a time, each sees increasing ids, and no id occurs twice.
	var wg sync.WaitGroup
	published := make([][]string, 8)
	for i := range published {
		wg.Go(func() {
			for range 20 {
				ids, err := publishOnce(t, e, topic, withKeys("", "")...)
				if err != nil {
					t.Error(err)
				}
				published[i] = append(published[i], ids...)
			}
		})
	}
	wg.Wait()
	seen := map[uint64]bool{}
	for _, ids := range published {
		before := last
		for _, id := range ids {
			n, err := strconv.ParseUint(id, 10, 64)
			if err != nil || n <= before || seen[n] {
				t.Errorf("got id %q after %d (given before: %v)", id, before, seen[n])
			}
			seen[n] = true
			before = n
		}
	}
	if len(seen) != 8*20*2 {
		t.Errorf("got %d ids, want %d", len(seen), 8*20*2)
	}
}

func idFromPublisher(t *testing.T, e *Env) {
	topic, sub := e.Subscribed(t)
	own := timestamppb.New(time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC))
	ids, err := publishOnce(t, e, topic,
		&pubsubpb.PubsubMessage{Data: []byte("1"), MessageId: "mine", PublishTime: own},
		&pubsubpb.PubsubMessage{Data: []byte("2"), MessageId: "mine", PublishTime: own})
	must(t, err)
	if slices.Contains(ids, "mine") {
		t.Errorf("got ids %q, want those of the server", ids)
	}
	for _, m := range wantTexts(t, e, sub, "1", "2") {
		i, _ := strconv.Atoi(string(m.GetMessage().GetData()))
		if got, want := m.GetMessage().GetMessageId(), ids[max(i, 1)-1]; got != want {
			t.Errorf("message %d has id %q, want %q", i, got, want)
		}
		if got := m.GetMessage().GetPublishTime().AsTime(); got.Before(time.Now().Add(-time.Minute)) {
			t.Errorf("message %d has time %v, want that of the server", i, got)
		}
	}
}

func publishTimes(t *testing.T, e *Env) {
	topic := e.Topic(t)
	subs := []string{e.Subscription(t, topic), e.Subscription(t, topic, Ordered)}
	before := time.Now()
	var ids []string
	for range 20 {
		ids = append(ids, e.Publish(t, topic, "", "x", "y")...)
	}
	after := time.Now()
	times := make([]map[string]time.Time, len(subs))
	for i, sub := range subs {
		times[i] = map[string]time.Time{}
		for _, m := range collect(t, e, sub, len(ids)) {
			times[i][m.GetMessage().GetMessageId()] = m.GetMessage().GetPublishTime().AsTime()
		}
	}
	wantEqual(t, times[0], times[1], "times in two subscriptions")
	const skew = 10 * time.Second // tolerance for the difference between the clocks
	last := before.Add(-skew)
	for i, id := range ids {
		at, ok := times[0][id]
		if !ok {
			t.Errorf("message %d did not arrive", i)
			continue
		}
		if at.Before(last) {
			t.Errorf("message %d has time %v, want none before %v", i, at, last)
		}
		if at.Nanosecond()%int(time.Millisecond) != 0 {
			t.Errorf("message %d has time %v, want whole milliseconds", i, at)
		}
		last = at
	}
	if last.After(after.Add(skew)) {
		t.Errorf("the last time is %v, want it before %v", last, after)
	}
	if e.Advance != nil {
		late := e.Subscription(t, topic)
		e.Advance(time.Hour)
		e.Publish(t, topic, "", "later")
		for _, m := range wantTexts(t, e, late, "later") {
			if got := m.GetMessage().GetPublishTime().AsTime().Sub(last); got < time.Hour {
				t.Errorf("the message an hour later has a time only %v later", got)
			}
		}
	}
}

func noSubscription(t *testing.T, e *Env) {
	topic := e.Topic(t)
	if got := e.Publish(t, topic, "", "1", "2"); len(got) != 2 {
		t.Errorf("got ids %q, want two", got)
	}
	sub := e.Subscription(t, topic, func(s *pubsubpb.Subscription) { s.RetainAckedMessages = true })
	wantTexts(t, e, sub)
	seekToTime(t, e, sub, time.Now().Add(-time.Hour))
	wantTexts(t, e, sub)
}

func afterCreation(t *testing.T, e *Env) {
	topic := e.Topic(t, func(p *pubsubpb.Topic) { p.MessageRetentionDuration = durationpb.New(time.Hour) })
	e.Publish(t, topic, "", "0")
	first := e.Subscription(t, topic)
	e.Publish(t, topic, "", "1")
	second := e.Subscription(t, topic)
	e.Publish(t, topic, "", "2", "3")
	wantTexts(t, e, first, "1", "2", "3")
	e.Ack(t, second, wantTexts(t, e, second, "2", "3")...) // must not affect the first subscription
	e.Publish(t, topic, "", "4")
	wantTexts(t, e, first, "4")
	wantTexts(t, e, second, "4")
}

func sameContent(t *testing.T, e *Env) {
	for name, kind := range map[string]func(*pubsubpb.Subscription){
		"plain": func(*pubsubpb.Subscription) {}, "ordered": Ordered,
	} {
		t.Run(name, func(t *testing.T) {
			topic, sub := e.Subscribed(t, kind)
			ids := slices.Concat(e.Publish(t, topic, "", "same", "same"), e.Publish(t, topic, "", "same"))
			if slices.Sort(ids); len(slices.Compact(slices.Clone(ids))) != 3 {
				t.Errorf("got ids %q, want three different ones", ids)
			}
			wantMessageIDs(t, e, sub, ids)
		})
	}
}

func publishWithoutTopic(t *testing.T, e *Env) {
	deleted := e.Topic(t)
	sub := e.Subscription(t, deleted)
	deleteTopic(t, e, deleted)
	for _, topic := range []string{e.Name("topics"), deleted} {
		WantCode(t, errOf(publishOnce(t, e, topic, &pubsubpb.PubsubMessage{Data: []byte("x")})), codes.NotFound)
	}
	wantTexts(t, e, sub)
}

func byteForByte(t *testing.T, e *Env) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	messages := map[string]*pubsubpb.PubsubMessage{
		"all bytes":       {Data: all},
		"a megabyte":      {Data: slices.Repeat(all, 4096)},
		"attributes only": {Attributes: map[string]string{"k": "v"}},
		"any UTF-8": {
			Data: []byte("x"),
			Attributes: map[string]string{
				"k": "", "schlüssel": "größe 🎬", "a.b/c d": " \t\n\x00", "K": "other case", "键": "值", `"q"`: `\"`,
			},
		},
		"key":                      {Data: []byte("x"), OrderingKey: "schlüssel 🎬\x00 "},
		"full count of attributes": {Data: []byte("x"), Attributes: manyAttributes(100)},
	}
	for name, message := range messages {
		t.Run(name, func(t *testing.T) {
			topic := e.Topic(t)
			for _, sub := range []string{e.Subscription(t, topic), e.Subscription(t, topic, Ordered)} {
				ids, err := publishOnce(t, e, topic, message)
				must(t, err)
				got := e.Pull(t, sub, 1)
				if len(got) != 1 {
					t.Fatalf("got %d messages, want 1", len(got))
				}
				arrived := got[0].GetMessage()
				arrived.MessageId, arrived.PublishTime = "", nil
				if !proto.Equal(message, arrived) { // cmp.Diff of megabytes would be slow
					t.Errorf("message %v (-sent +got):\n%s", ids, cmp.Diff(message, arrived, protocmp.Transform()))
				}
			}
		})
	}
}
