package conformance

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

var filters = []Case{
	{ID: "E1", Sentence: "A filter has at most 256 bytes; an empty one passes all.", Run: filterLength},
	{ID: "E2", Sentence: "A filter that does not parse is refused.", Run: filterSyntax},
	{ID: "E3", Sentence: "A filter sees attributes only.", Run: filterSeesAttributes},
	{ID: "E4", Sentence: "What does not match counts as acknowledged.", Run: filteredIsAcked},
	{ID: "E5", Sentence: "attributes:K matches messages that have K.", Run: filterHas},
	{ID: "E6", Sentence: `attributes.K = "V" matches equal values, by case, without wildcards.`, Run: filterEqual},
	{ID: "E7", Sentence: `attributes.K != "V" matches messages without K, too.`, Run: filterNotEqual},
	{ID: "E8", Sentence: `hasPrefix(attributes.K, "P") matches values that start with P.`, Run: filterPrefix},
	{ID: "E9", Sentence: "hasPrefix with two arguments is the only function.", Run: filterFunctions},
	{ID: "E10", Sentence: "AND, OR and NOT are in upper case.", Run: filterCase},
	{ID: "E11", Sentence: "NOT binds strongest, and - is the same.", Run: filterNot},
	{ID: "E12", Sentence: "AND and OR are mixed with parentheses only.", Run: filterMixed},
	{ID: "E13", Sentence: "A key with unusual characters is quoted.", Run: filterKeys},
	{ID: "E14", Sentence: "Escapes are for string literals.", Run: filterEscapes},
	{ID: "E15", Sentence: "An attribute is on the left, a string on the right.", Run: filterSides},
	{ID: "E16", Sentence: "Filtered messages leave no gap in the order of a key.", Run: filterOrdered},
	{ID: "E17", Sentence: "A seek respects the filter of its own subscription.", Run: filterSeek},
}

// filtering sets the filter of a subscription.
func filtering(filter string) func(*pubsubpb.Subscription) {
	return func(s *pubsubpb.Subscription) { s.Filter = filter }
}

// attributes are the attributes of a message.
type attributes = map[string]string

// publishAll publishes a message for each text.
func publishAll(t *testing.T, e *Env, topic string, messages map[string]attributes) {
	t.Helper()
	request := &pubsubpb.PublishRequest{Topic: topic}
	for text, a := range messages {
		request.Messages = append(request.Messages, &pubsubpb.PubsubMessage{Data: []byte(text), Attributes: a})
	}
	if _, err := e.Topics.Publish(t.Context(), request); err != nil {
		t.Fatalf("Publish: %v", err)
	}
}

// filterTest is a filter, and the texts of the messages that match it.
type filterTest struct {
	filter string
	want   []string
}

// wantPassed publishes all messages to a subscription per filter, and compares what each receives.
func wantPassed(t *testing.T, e *Env, messages map[string]attributes, tests []filterTest) {
	t.Helper()
	topic := e.Topic(t)
	subs := map[string]string{}
	for _, test := range tests {
		sub, err := tryCreate(t, e, topic, filtering(test.filter))
		if err != nil {
			t.Errorf("filter %s: %v", test.filter, err)
			continue
		}
		if got := sub.GetFilter(); got != test.filter {
			t.Errorf("got filter %s, want %s", got, test.filter)
		}
		subs[test.filter] = sub.GetName()
	}
	publishAll(t, e, topic, messages)
	for _, test := range tests {
		if sub := subs[test.filter]; sub != "" {
			t.Run(test.filter, func(t *testing.T) { wantTexts(t, e, sub, test.want...) })
		}
	}
}

// wantUnparsed fails the test unless each of these filters is refused.
func wantUnparsed(t *testing.T, e *Env, filters ...string) {
	t.Helper()
	topic := e.Topic(t)
	for _, filter := range filters {
		t.Run(filter, func(t *testing.T) {
			_, err := tryCreate(t, e, topic, filtering(filter))
			WantCode(t, err, codes.InvalidArgument)
		})
	}
}

func filterLength(t *testing.T, e *Env) {
	const rest = `attributes.a = ""`
	value := strings.Repeat("x", 256-len(rest))
	wide := strings.Repeat("é", (256-len(rest)-1)/2) + "x"
	wantPassed(t, e, map[string]attributes{"none": nil, "other": {"a": "x"}, "equal": {"a": value}, "wide": {"a": wide}}, []filterTest{
		{"", []string{"none", "other", "equal", "wide"}},
		{`attributes.a = "` + value + `"`, []string{"equal"}},
		{`attributes.a = "` + wide + `"`, []string{"wide"}},
	})
	wantUnparsed(t, e,
		`attributes.a = "`+value+`x"`,
		`attributes.a = "`+wide+`x"`, // 257 bytes, but far fewer characters
		`attributes.a = "`+strings.Repeat("x", 10_000)+`"`)
}

func filterSyntax(t *testing.T, e *Env) {
	wantUnparsed(t, e,
		`attributes`, `attributes:`, `attributes.`, `attributes.a`, `attributes.a =`, `attributes.a = x`, `attributes.a = 5`,
		`attributes.a == "x"`, `attributes.a < "x"`, `attributes.a : "x"`, `attributes.a ! "x"`, `attributes.a ~ "x"`,
		`attributes.a = "x`, `attributes.a = 'x`, `attribute:a`, `Attributes:a`, `ATTRIBUTES.a = "x"`, `a = "x"`, `= "x"`, `"x"`,
		`(attributes:a`, `attributes:a)`, `()`, `(`, `attributes:a attributes:b`, `attributes:a, attributes:b`,
		`AND`, `NOT`, `-`, `attributes:a AND`, `OR attributes:a`, `attributes:a AND OR attributes:b`, `attributes:a NOT attributes:b`,
		`attributes:a && attributes:b`, `!attributes:a`, `attributes:a;`, `hasPrefix`, `hasPrefix(attributes.a, "x"`, `true`,
	)
	// A valid filter, so that a server that refuses all of them fails.
	wantPassed(t, e, map[string]attributes{"a": {"a": "x"}, "b": {"b": "x"}}, []filterTest{
		{`(attributes:a AND NOT attributes.b = "y")`, []string{"a"}},
	})
}

func filterSeesAttributes(t *testing.T, e *Env) {
	wantUnparsed(t, e, `data = "red"`, `data:red`, `ordering_key = "red"`, `orderingKey:red`, `message_id = "1"`, `publish_time > "2001"`,
		`hasPrefix(data, "r")`, `message.attributes.color = "red"`)
	topic := e.Topic(t)
	color, key := e.Subscription(t, topic, filtering(`attributes.color = "red"`)), e.Subscription(t, topic, filtering(`attributes:ordering_key`))
	data := e.Subscription(t, topic, filtering(`attributes.data = "red" OR attributes:red OR attributes:message_id`))
	for _, m := range []*pubsubpb.PubsubMessage{
		{Data: []byte("red")},
		{Data: []byte(`{"color":"red"}`)},
		{Data: []byte("key"), OrderingKey: "red"},
		{Data: []byte("color"), Attributes: attributes{"color": "red"}},
		{Data: []byte("named data"), Attributes: attributes{"data": "red"}},
		{Data: []byte("named key"), Attributes: attributes{"ordering_key": "x"}},
	} {
		if _, err := publishOnce(t, e, topic, m); err != nil {
			t.Fatal(err)
		}
	}
	wantTexts(t, e, color, "color")
	wantTexts(t, e, key, "named key")
	wantTexts(t, e, data, "named data")
}

func filteredIsAcked(t *testing.T, e *Env) {
	topic, dead := e.Topic(t), e.Topic(t)
	deadSub := e.Subscription(t, dead)
	sub := e.Subscription(t, topic, filtering("attributes:a"), func(s *pubsubpb.Subscription) {
		s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: dead, MaxDeliveryAttempts: 5}
	})
	all := e.Subscription(t, topic)
	publishAll(t, e, topic, map[string]attributes{"match": {"a": "x"}, "other": {"b": "x"}, "none": nil})
	// A snapshot has the backlog of sub. A subscription without a filter that seeks to it shows
	// what it contains.
	snapshot := snapshotOf(t, e, sub)
	wantTexts(t, e, all, "match", "other", "none")
	seekToSnapshot(t, e, all, snapshot)
	wantTexts(t, e, all, "match")
	for range 5 {
		e.Nack(t, sub, wantTexts(t, e, sub, "match")...)
	}
	wantTexts(t, e, sub)
	wantTexts(t, e, deadSub, "match")
}

func filterHas(t *testing.T, e *Env) {
	wantPassed(t, e, map[string]attributes{
		"none": nil, "a": {"a": "x"}, "empty": {"a": ""}, "b": {"b": "a"}, "both": {"a": "y", "b": "z"}, "longer": {"ab": "x"},
	}, []filterTest{
		{`attributes:a`, []string{"a", "empty", "both"}},
		{`attributes:"a"`, []string{"a", "empty", "both"}},
		{`attributes:b`, []string{"b", "both"}},
		{`attributes:ab`, []string{"longer"}},
		{`attributes:x`, nil},
	})
}

func filterEqual(t *testing.T, e *Env) {
	wantPassed(t, e, map[string]attributes{
		"none": nil, "com": {"a": "com"}, "Com": {"a": "Com"}, "longer": {"a": "com.example"}, "star": {"a": "c*"},
		"empty": {"a": ""}, "other key": {"b": "com"}, "space": {"a": "com "},
	}, []filterTest{
		{`attributes.a = "com"`, []string{"com"}},
		{`attributes.a="com"`, []string{"com"}},
		{`attributes.a = "Com"`, []string{"Com"}},
		{`attributes.a = "c*"`, []string{"star"}},
		{`attributes.a = "*"`, nil},
		{`attributes.a = "c.m"`, nil},
		{`attributes.a = ""`, []string{"empty"}},
		{`attributes.b = "com"`, []string{"other key"}},
	})
}

func filterNotEqual(t *testing.T, e *Env) {
	wantPassed(t, e, map[string]attributes{"none": nil, "com": {"a": "com"}, "Com": {"a": "Com"}, "empty": {"a": ""}, "other key": {"b": "com"}},
		[]filterTest{
			{`attributes.a != "com"`, []string{"none", "Com", "empty", "other key"}},
			{`attributes.a!="com"`, []string{"none", "Com", "empty", "other key"}},
			{`attributes.a != ""`, []string{"none", "com", "Com", "other key"}},
			{`attributes:a AND attributes.a != "com"`, []string{"Com", "empty"}},
		})
}

func filterPrefix(t *testing.T, e *Env) {
	wantPassed(t, e, map[string]attributes{
		"none": nil, "co": {"a": "co"}, "com": {"a": "com"}, "Com": {"a": "Com"}, "c": {"a": "c"}, "inside": {"a": "xcom"},
		"empty": {"a": ""}, "other key": {"b": "com"},
	}, []filterTest{
		{`hasPrefix(attributes.a, "co")`, []string{"co", "com"}},
		{`hasPrefix(attributes.a,"co")`, []string{"co", "com"}},
		{`NOT hasPrefix(attributes.a, "co")`, []string{"none", "Com", "c", "inside", "empty", "other key"}},
		{`hasPrefix(attributes.a, "")`, []string{"co", "com", "Com", "c", "inside", "empty"}},
		{`hasPrefix(attributes."a", "co")`, []string{"co", "com"}},
	})
}

func filterFunctions(t *testing.T, e *Env) {
	wantUnparsed(t, e,
		`hasSuffix(attributes.a, "x")`, `contains(attributes.a, "x")`, `startsWith(attributes.a, "x")`, `has(attributes.a)`,
		`hasprefix(attributes.a, "x")`, `HASPREFIX(attributes.a, "x")`, `HasPrefix(attributes.a, "x")`,
		`hasPrefix()`, `hasPrefix(attributes.a)`, `hasPrefix("x")`, `hasPrefix(attributes.a, "x", "y")`, `hasPrefix(attributes.a, "x",)`,
		`hasPrefix(attributes.a, "x") = "true"`)
	wantPassed(t, e, map[string]attributes{"x": {"a": "xy"}, "y": {"a": "yx"}}, []filterTest{{`hasPrefix(attributes.a, "x")`, []string{"x"}}})
}

func filterCase(t *testing.T, e *Env) {
	wantUnparsed(t, e,
		`attributes:a and attributes:b`, `attributes:a And attributes:b`, `attributes:a or attributes:b`, `attributes:a Or attributes:b`,
		`not attributes:a`, `Not attributes:a`, `attributes:a AND not attributes:b`)
	wantPassed(t, e, map[string]attributes{"a": {"a": ""}, "b": {"b": ""}, "ab": {"a": "", "b": ""}, "none": nil}, []filterTest{
		{`attributes:a AND attributes:b`, []string{"ab"}},
		{`attributes:a OR attributes:b`, []string{"a", "b", "ab"}},
		{`NOT attributes:a`, []string{"b", "none"}},
	})
}

func filterNot(t *testing.T, e *Env) {
	wantPassed(t, e, map[string]attributes{"a": {"a": "x"}, "b": {"b": "x"}, "ab": {"a": "x", "b": "x"}, "none": nil}, []filterTest{
		{`NOT attributes:a`, []string{"b", "none"}},
		{`-attributes:a`, []string{"b", "none"}},
		{`NOT attributes:a AND attributes:b`, []string{"b"}},
		{`-attributes:a AND attributes:b`, []string{"b"}},
		{`NOT (attributes:a AND attributes:b)`, []string{"a", "b", "none"}},
		{`-(attributes:a AND attributes:b)`, []string{"a", "b", "none"}},
		{`NOT attributes:a OR attributes:b`, []string{"b", "ab", "none"}},
		{`-attributes:a OR attributes:b`, []string{"b", "ab", "none"}},
		{`NOT (attributes:a OR attributes:b)`, []string{"none"}},
		{`-(attributes:a OR attributes:b)`, []string{"none"}},
		{`attributes:a AND NOT attributes:b`, []string{"a"}},
		{`attributes:a AND -attributes:b`, []string{"a"}},
		{`NOT attributes.a = "x"`, []string{"b", "none"}},
		{`-hasPrefix(attributes.a, "x")`, []string{"b", "none"}},
	})
}

func filterMixed(t *testing.T, e *Env) {
	wantUnparsed(t, e,
		`attributes:a AND attributes:b OR attributes:c`,
		`attributes:a OR attributes:b AND attributes:c`,
		`attributes:a AND attributes:b AND attributes:c OR attributes:d`,
		`attributes:d AND (attributes:a AND attributes:b OR attributes:c)`,
		`NOT attributes:a AND attributes:b OR attributes:c`)
	wantPassed(t, e, map[string]attributes{
		"none": nil, "a": {"a": ""}, "b": {"b": ""}, "c": {"c": ""},
		"ab": {"a": "", "b": ""}, "ac": {"a": "", "c": ""}, "bc": {"b": "", "c": ""}, "abc": {"a": "", "b": "", "c": ""},
	}, []filterTest{
		{`attributes:a AND attributes:b AND attributes:c`, []string{"abc"}},
		{`attributes:a OR attributes:b OR attributes:c`, []string{"a", "b", "c", "ab", "ac", "bc", "abc"}},
		{`(attributes:a AND attributes:b) OR attributes:c`, []string{"c", "ab", "ac", "bc", "abc"}},
		{`attributes:a AND (attributes:b OR attributes:c)`, []string{"ab", "ac", "abc"}},
		{`(attributes:a OR attributes:b) AND (attributes:b OR attributes:c)`, []string{"b", "ab", "ac", "bc", "abc"}},
	})
}

func filterKeys(t *testing.T, e *Env) {
	wantUnparsed(t, e,
		`attributes.iana.org/x = "y"`, `attributes:iana.org/x`, `hasPrefix(attributes.iana.org/x, "y")`, `attributes:a b`,
		`attributes:schlüssel`, `attributes."iana.org/x = "y"`)
	wantPassed(t, e, map[string]attributes{
		"none": nil, "iana": {"iana.org/x": "y"}, "plain": {"a_B-9": "y"}, "space": {"a b": "y"}, "wide": {"schlüssel": "y"},
		"parts": {"iana": "y", "x": "y"},
	}, []filterTest{
		{`attributes."iana.org/x" = "y"`, []string{"iana"}},
		{`attributes."iana.org/x" != "y"`, []string{"none", "plain", "space", "wide", "parts"}},
		{`attributes:"iana.org/x"`, []string{"iana"}},
		{`hasPrefix(attributes."iana.org/x", "y")`, []string{"iana"}},
		{`attributes.a_B-9 = "y"`, []string{"plain"}},
		{`attributes:a_B-9`, []string{"plain"}},
		{`attributes."a_B-9" = "y"`, []string{"plain"}},
		{`attributes:"a b"`, []string{"space"}},
		{`attributes."schlüssel" = "y"`, []string{"wide"}},
	})
}

func filterEscapes(t *testing.T, e *Env) {
	wantUnparsed(t, e,
		`attributes.a = \"x\"`, `attributes.\u0061 = "x"`, `attributes:\x61`, `attributes:a\u0062`, `attributes:\141`,
		`attributes:a\nAND attributes:b`, `attributes.a = "x\"`)
	wantPassed(t, e, map[string]attributes{
		"quotes": {"a": `say "hi"`}, "backslash": {"a": `c:\temp`}, "newline": {"a": "1\n2"}, "tab": {"a": "1\t2"}, "return": {"a": "1\r2"},
		"e": {"a": "é"}, "A": {"a": "A"}, "letters": {"a": `\u00e9\n`}, "key": {`k"k`: "x"},
	}, []filterTest{
		{`attributes.a = "say \"hi\""`, []string{"quotes"}},
		{`attributes.a = "c:\\temp"`, []string{"backslash"}},
		{`attributes.a = "1\n2"`, []string{"newline"}},
		{`attributes.a = "1\t2"`, []string{"tab"}},
		{`attributes.a = "1\r2"`, []string{"return"}},
		{`attributes.a = "\u00e9"`, []string{"e"}},
		{`attributes.a = "\u0041"`, []string{"A"}},
		{`attributes.a = "\x41"`, []string{"A"}},
		{`attributes.a = "\101"`, []string{"A"}},
		{`attributes.a = "\\u00e9\\n"`, []string{"letters"}},
		{`hasPrefix(attributes.a, "\x73ay \"")`, []string{"quotes"}},
		{`attributes:"k\"k"`, []string{"key"}},
	})
}

func filterSides(t *testing.T, e *Env) {
	wantUnparsed(t, e,
		`"com" = attributes.a`, `"com" != attributes.a`, `attributes.a = attributes.b`, `attributes.a != attributes.b`,
		`attributes:a AND ("x" OR "y")`, `attributes.a = ("x" OR "y")`, `attributes.a = "x" OR "y"`, `"a" = "a"`,
		`hasPrefix("x", attributes.a)`, `hasPrefix(attributes.a, attributes.b)`, `hasPrefix("x", "x")`)
	wantPassed(t, e, map[string]attributes{"com": {"a": "com"}, "net": {"a": "net"}}, []filterTest{{`attributes.a = "com"`, []string{"com"}}})
}

func filterOrdered(t *testing.T, e *Env) {
	topic := e.Topic(t)
	for name, batch := range map[string]int{"one at a time": 1, "many at a time": 10} {
		t.Run(name, func(t *testing.T) {
			sub := e.Subscription(t, topic, Ordered, filtering("attributes:a"))
			for _, m := range []*pubsubpb.PubsubMessage{
				{Data: []byte("none first")}, {Data: []byte("1"), Attributes: attributes{"a": ""}},
				{Data: []byte("none")}, {Data: []byte("2"), Attributes: attributes{"a": ""}},
				{Data: []byte("none")}, {Data: []byte("none")}, {Data: []byte("3"), Attributes: attributes{"a": ""}},
				{Data: []byte("none last")},
			} {
				m.OrderingKey = "k"
				if _, err := publishOnce(t, e, topic, m); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for range 4 {
				messages := e.Pull(t, sub, batch)
				if len(messages) == 0 {
					break
				}
				got = append(got, Texts(messages)...)
				e.Ack(t, sub, messages...)
			}
			if diff := cmp.Diff([]string{"1", "2", "3"}, got); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}

func filterSeek(t *testing.T, e *Env) {
	a, b, ab := attributes{"a": ""}, attributes{"b": ""}, attributes{"a": "", "b": ""}
	t.Run("to a time", func(t *testing.T) {
		topic := e.Topic(t, keeping(time.Hour))
		sub := e.Subscription(t, topic, filtering("attributes:a"))
		publishAll(t, e, topic, map[string]attributes{"a": a, "b": b, "ab": ab, "none": nil})
		e.Ack(t, sub, wantTexts(t, e, sub, "a", "ab")...)
		seekToTime(t, e, sub, aBeginning())
		wantTexts(t, e, sub, "a", "ab")
		later := e.Subscription(t, topic, filtering("attributes:b"))
		seekToTime(t, e, later, aBeginning())
		wantTexts(t, e, later, "b", "ab")
	})
	t.Run("to a snapshot", func(t *testing.T) {
		topic := e.Topic(t)
		first := e.Subscription(t, topic, filtering("attributes:a"))
		second := e.Subscription(t, topic, filtering("attributes:b"))
		publishAll(t, e, topic, map[string]attributes{"old a": a, "old b": b, "old ab": ab, "old none": nil})
		snapshot := snapshotOf(t, e, first)
		publishAll(t, e, topic, map[string]attributes{"new a": a, "new b": b, "new ab": ab, "new none": nil})
		third := e.Subscription(t, topic, filtering("attributes:b"))
		// These older messages did not match the first filter, so the first subscription counts
		// them as acknowledged.
		for _, sub := range []string{second, third} {
			seekToSnapshot(t, e, sub, snapshot)
			wantTexts(t, e, sub, "old ab", "new b", "new ab")
		}
		e.Ack(t, first, wantTexts(t, e, first, "old a", "old ab", "new a", "new ab")...)
		seekToSnapshot(t, e, first, snapshot)
		wantTexts(t, e, first, "old a", "old ab", "new a", "new ab")
	})
}
