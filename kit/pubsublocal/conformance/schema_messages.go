package conformance

import (
	"fmt"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
)

// schemaMessages are the cases of section M about topics with a schema and their messages.
var schemaMessages = []Case{
	{
		ID:       "M11",
		Sentence: "A topic that names a missing schema is NOT_FOUND, one with a schema and no encoding INVALID_ARGUMENT.",
		Run: func(t *testing.T, e *Env) {
			schema := newSchema(t, e, filmV1)
			name := schema.GetName()
			for _, test := range []struct {
				name     string
				settings *pubsubpb.SchemaSettings
				want     codes.Code
			}{
				{"missing schema", &pubsubpb.SchemaSettings{Schema: e.Name("schemas"), Encoding: pubsubpb.Encoding_JSON}, codes.NotFound},
				{"no encoding", &pubsubpb.SchemaSettings{Schema: name}, codes.InvalidArgument},
			} {
				t.Run(test.name, func(t *testing.T) {
					topic := &pubsubpb.Topic{Name: e.Name("topics"), SchemaSettings: test.settings}
					WantCode(t, errOf(e.Topics.CreateTopic(t.Context(), topic)), test.want)
					WantCode(t, errOf(e.Topics.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: topic.GetName()})), codes.NotFound)

					existing := e.Topic(t)
					WantCode(t, setSchemaSettings(t, e, existing, test.settings, "schema_settings"), test.want)
					got, err := e.Topics.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: existing})
					if err != nil || got.GetSchemaSettings() != nil {
						t.Errorf("after the refused update: got %v, %v, want no schema", got, err)
					}
				})
			}
		},
	},
	{
		ID: "M12",
		Sentence: "Publish tries the revisions of the schema, newest first; the first that fits wins; " +
			"none is INVALID_ARGUMENT for the whole request.",
		Run: func(t *testing.T, e *Env) {
			v1 := newSchema(t, e, filmV1)
			name := v1.GetName()
			v2 := newRevision(t, e, name, filmV2)
			v3 := newRevision(t, e, name, filmV3)
			ids := map[string]string{"v1": v1.GetRevisionId(), "v2": v2.GetRevisionId(), "v3": v3.GetRevisionId()}
			bare, year, rating, both := `{"title": "Ran"}`, `{"title": "Ran", "year": 1985}`, `{"rating": "12"}`, `{"year": 1985, "rating": "12"}`
			topic := topicWithSchema(t, e, pubsubpb.Encoding_JSON, name)
			sub := e.Subscription(t, topic)
			for message, revision := range map[string]string{bare: "v3", rating: "v3", year: "v1"} {
				if err := publishData(t, e, topic, message); err != nil {
					t.Errorf("Publish %s: %v", message, err)
					continue
				}
				m := oneDelivery(t, e, sub)
				wantEqual(t, ids[revision], m.GetMessage().GetAttributes()["googclient_schemarevisionid"], "%s: revision, which is %s", message, revision)
				e.Ack(t, sub, m)
			}
			WantCode(t, publishData(t, e, topic, bare, both), codes.InvalidArgument, "Invalid data in message: Message failed schema validation.")
			pullNothing(t, e, sub)
		},
	},
	{
		ID:       "M13",
		Sentence: "Delivered messages have three attributes more: the encoding, the name of the schema, and the revision that fitted.",
		Run: func(t *testing.T, e *Env) {
			schema := newSchema(t, e, filmV1)
			for encoding, data := range map[pubsubpb.Encoding][]byte{
				pubsubpb.Encoding_JSON:   []byte(`{"title": "Ran"}`),
				pubsubpb.Encoding_BINARY: protoString(1, "Ran"),
			} {
				t.Run(encoding.String(), func(t *testing.T) {
					topic := topicWithSchema(t, e, encoding, schema.GetName())
					sub := e.Subscription(t, topic)
					message := &pubsubpb.PubsubMessage{Data: data, Attributes: map[string]string{"own": "1"}}
					e.PublishMessages(t, topic, message)
					want := map[string]string{
						"own":                         "1",
						"googclient_schemaencoding":   encoding.String(),
						"googclient_schemaname":       schema.GetName(),
						"googclient_schemarevisionid": schema.GetRevisionId(),
					}
					got := oneDelivery(t, e, sub).GetMessage()
					wantEqual(t, want, got.GetAttributes(), "attributes")
					wantEqual(t, data, got.GetData(), "data")
				})
			}
		},
	},
	{
		ID:       "M14",
		Sentence: "BINARY refuses bytes that do not parse and field numbers that the revision does not have.",
		Run: func(t *testing.T, e *Env) {
			topic := topicWithSchema(t, e, pubsubpb.Encoding_BINARY, newSchema(t, e,
				`syntax = "proto3"; message Film { message Role { string name = 1; } string title = 1; repeated Role roles = 2; }`).GetName())
			for name, test := range map[string]struct {
				data []byte
				want codes.Code
			}{
				"fits":                 {protoString(1, "Ran"), codes.OK},
				"nested fits":          {protoString(2, string(protoString(1, "Lear"))), codes.OK},
				"cut":                  {protoString(1, "Ran")[:3], codes.InvalidArgument},
				"no protobuf":          {[]byte{0xff, 0xff, 0xff}, codes.InvalidArgument},
				"JSON":                 {[]byte(`{"title": "Ran"}`), codes.InvalidArgument},
				"unknown field":        {append(protoString(1, "Ran"), protoString(3, "x")...), codes.InvalidArgument},
				"nested unknown field": {protoString(2, string(protoString(9, "x"))), codes.InvalidArgument},
				"no UTF-8":             {protoString(1, "\xff"), codes.InvalidArgument},
			} {
				t.Run(name, func(t *testing.T) {
					WantCode(t, publishData(t, e, topic, string(test.data)), test.want)
				})
			}
		},
	},
	{
		ID:       "M15",
		Sentence: "JSON is proto3 JSON: unknown names, wrong types and what is no JSON are refused; lower_snake and camelCase names are read.",
		Run: func(t *testing.T, e *Env) {
			topic := topicWithSchema(t, e, pubsubpb.Encoding_JSON, newSchema(t, e,
				`syntax = "proto3"; message Film { enum Kind { KIND_UNSPECIFIED = 0; SHORT = 1; }
					string title = 1; int32 release_year = 2; int64 views = 3; repeated string tags = 4; Kind kind = 5; bytes poster = 6; }`).GetName())
			for data, want := range map[string]codes.Code{
				`{"title": "Ran"}`:                    codes.OK,
				`{"release_year": 1985}`:              codes.OK,
				`{"releaseYear": 1985}`:               codes.OK,
				`{"views": "9007199254740993"}`:       codes.OK,
				`{"tags": ["war"], "kind": "SHORT"}`:  codes.OK,
				`{"poster": "AAH/"}`:                  codes.OK,
				`{"director": "Kurosawa"}`:            codes.InvalidArgument,
				`{"ReleaseYear": 1985}`:               codes.InvalidArgument,
				`{"title": 1}`:                        codes.InvalidArgument,
				`{"releaseYear": "a year"}`:           codes.InvalidArgument,
				`{"tags": "war"}`:                     codes.InvalidArgument,
				`{"kind": "LONG"}`:                    codes.InvalidArgument,
				`{"poster": "?"}`:                     codes.InvalidArgument,
				`{"title": "Ran"`:                     codes.InvalidArgument,
				`{"title": "Ran"} {"title": "Ikiru"}`: codes.InvalidArgument,
				`"Ran"`:                               codes.InvalidArgument,
				"Ran":                                 codes.InvalidArgument,
				string(protoString(1, "Ran")):         codes.InvalidArgument,
			} {
				t.Run(data, func(t *testing.T) {
					WantCode(t, publishData(t, e, topic, data), want)
				})
			}
		},
	},
	{
		ID:       "M16",
		Sentence: "Required fields of proto2 must be present.",
		Run: func(t *testing.T, e *Env) {
			schema := newSchema(t, e, `syntax = "proto2"; message Film { required string title = 1; optional string rating = 2; }`)
			for _, test := range []struct {
				encoding pubsubpb.Encoding
				data     string
				want     codes.Code
			}{
				{pubsubpb.Encoding_JSON, `{"title": "Ran"}`, codes.OK},
				{pubsubpb.Encoding_JSON, `{"rating": "12"}`, codes.InvalidArgument},
				{pubsubpb.Encoding_BINARY, string(protoString(1, "Ran")), codes.OK},
				{pubsubpb.Encoding_BINARY, string(protoString(2, "12")), codes.InvalidArgument},
			} {
				t.Run(fmt.Sprint(test.encoding, test.want), func(t *testing.T) {
					WantCode(t, publishData(t, e, topicWithSchema(t, e, test.encoding, schema.GetName()), test.data), test.want)
				})
			}
		},
	},
	{
		ID:       "M18",
		Sentence: "A schema in use may be deleted; the topic then shows _deleted-schema_, and every Publish to it is INVALID_ARGUMENT.",
		Run: func(t *testing.T, e *Env) {
			schema := newSchema(t, e, filmV1)
			topic := topicWithSchema(t, e, pubsubpb.Encoding_JSON, schema.GetName())
			sub := e.Subscription(t, topic)
			must(t, e.Schema.DeleteSchema(t.Context(), &pubsubpb.DeleteSchemaRequest{Name: schema.GetName()}))
			wantNoSchema(t, e, schema.GetName())
			check := func(when string) {
				t.Helper()
				got, err := e.Topics.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: topic})
				if err != nil || got.GetSchemaSettings().GetSchema() != "_deleted-schema_" {
					t.Errorf("%s: got %v, %v, want schema _deleted-schema_", when, got, err)
				}
				WantCode(t, publishData(t, e, topic, `{"title": "Ran"}`), codes.InvalidArgument)
			}
			check("deleted")
			if _, err := e.Schema.CreateSchema(t.Context(), createSchemaRequest(schema.GetName(), filmV1)); err != nil {
				t.Fatalf("CreateSchema again: %v", err)
			}
			check("created again")
			pullNothing(t, e, sub)
		},
	},
	{
		ID:       "M19",
		Sentence: "A change of a schema, or of the topic's settings for it, is effective for the next Publish.",
		Run: func(t *testing.T, e *Env) {
			first := newSchema(t, e, filmV1)
			name := first.GetName()
			topic := topicWithSchema(t, e, pubsubpb.Encoding_JSON, name)
			rating := `{"rating": "12"}`
			WantCode(t, publishData(t, e, topic, rating), codes.InvalidArgument)
			third := newRevision(t, e, name, filmV3)
			WantCode(t, publishData(t, e, topic, rating), codes.OK)

			set := func(settings *pubsubpb.SchemaSettings) {
				t.Helper()
				must(t, setSchemaSettings(t, e, topic, settings, "schema_settings"))
			}
			set(&pubsubpb.SchemaSettings{Schema: name, Encoding: pubsubpb.Encoding_BINARY})
			WantCode(t, publishData(t, e, topic, rating), codes.InvalidArgument)
			set(&pubsubpb.SchemaSettings{Schema: name, Encoding: pubsubpb.Encoding_JSON})
			WantCode(t, publishData(t, e, topic, rating), codes.OK)

			deleteRevision(t, e, name+"@"+third.GetRevisionId())
			WantCode(t, publishData(t, e, topic, rating), codes.InvalidArgument)
			set(nil)
			WantCode(t, publishData(t, e, topic, "anything"), codes.OK)
		},
	},
}
