package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// createSchemaRequest returns a request for a protobuf schema with this full name.
func createSchemaRequest(name, definition string) *pubsubpb.CreateSchemaRequest {
	parent, id, _ := strings.Cut(name, "/schemas/")
	return &pubsubpb.CreateSchemaRequest{
		Parent: parent, SchemaId: id, Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: definition},
	}
}

// newSchema creates a protobuf schema.
func newSchema(t *testing.T, e *Env, definition string) *pubsubpb.Schema {
	t.Helper()
	schema, err := e.Schema.CreateSchema(t.Context(), createSchemaRequest(e.Name("schemas"), definition))
	must(t, err)
	return schema
}

// commitSchema commits a protobuf definition.
func commitSchema(t *testing.T, e *Env, name, definition string) (*pubsubpb.Schema, error) {
	t.Helper()
	return e.Schema.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{
		Name: name, Schema: &pubsubpb.Schema{Name: name, Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: definition},
	})
}

// newRevision commits a protobuf definition that fits.
func newRevision(t *testing.T, e *Env, name, definition string) *pubsubpb.Schema {
	t.Helper()
	schema, err := commitSchema(t, e, name, definition)
	must(t, err)
	return schema
}

func deleteRevision(t *testing.T, e *Env, name string) {
	t.Helper()
	must(t, errOf(e.Schema.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: name})))
}

// filmRevision returns definition n of many that are compatible but different.
func filmRevision(n int) string {
	return fmt.Sprintf(`syntax = "proto3"; message Film { string title = 1; string note_%[1]d = %[1]d; }`, 100+n)
}

// fullSchema creates a schema with 20 revisions, the maximum. It returns its name and the id of the
// first revision.
func fullSchema(t *testing.T, e *Env) (name, first string) {
	t.Helper()
	schema := newSchema(t, e, filmRevision(1))
	for n := 2; n <= 20; n++ {
		newRevision(t, e, schema.GetName(), filmRevision(n))
	}
	return schema.GetName(), schema.GetRevisionId()
}

func getSchema(t *testing.T, e *Env, name string) *pubsubpb.Schema {
	t.Helper()
	schema, err := e.Schema.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: name})
	must(t, err)
	return schema
}

// wantNoSchema fails the test if this schema or revision exists.
func wantNoSchema(t *testing.T, e *Env, name string) {
	t.Helper()
	WantCode(t, errOf(e.Schema.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: name})), codes.NotFound)
}

// revisionsOf lists the revisions of a schema.
func revisionsOf(t *testing.T, e *Env, name string, view pubsubpb.SchemaView) []*pubsubpb.Schema {
	t.Helper()
	return allSchemas(t, e.Schema.ListSchemaRevisions(t.Context(), &pubsubpb.ListSchemaRevisionsRequest{Name: name, View: view}))
}

func allSchemas(t *testing.T, it *vkit.SchemaIterator) (all []*pubsubpb.Schema) {
	t.Helper()
	for {
		schema, err := it.Next()
		if errors.Is(err, iterator.Done) {
			return all
		}
		if err != nil {
			t.Fatalf("list of schemas: %v", err)
		}
		all = append(all, schema)
	}
}

// unusedRevision returns a valid revision id that is not in used.
func unusedRevision(used []string) string {
	for _, id := range []string{"00000000", "11111111", "22222222"} {
		if !slices.Contains(used, id) {
			return id
		}
	}
	return "33333333"
}

// topicWithSchema creates a topic whose messages are validated against a schema.
func topicWithSchema(t *testing.T, e *Env, encoding pubsubpb.Encoding, schema string) string {
	t.Helper()
	return e.Topic(t, func(topic *pubsubpb.Topic) {
		topic.SchemaSettings = &pubsubpb.SchemaSettings{Schema: schema, Encoding: encoding}
	})
}

// setSchemaSettings updates the schema settings of a topic, with path in the update mask.
func setSchemaSettings(t *testing.T, e *Env, topic string, settings *pubsubpb.SchemaSettings, path string) error {
	t.Helper()
	return errOf(topicUpdate(t, e, &pubsubpb.Topic{Name: topic, SchemaSettings: settings}, path))
}

// publishData publishes messages in one request, and returns its error.
func publishData(t *testing.T, e *Env, topic string, data ...string) error {
	t.Helper()
	request := &pubsubpb.PublishRequest{Topic: topic}
	for _, d := range data {
		request.Messages = append(request.Messages, &pubsubpb.PubsubMessage{Data: []byte(d)})
	}
	return errOf(e.Topics.Publish(t.Context(), request))
}

// protoString encodes a protobuf message with one string field.
func protoString(number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
}
