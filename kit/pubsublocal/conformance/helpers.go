package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// elsewhere returns the id of another project.
func elsewhere(e *Env) string { return e.Project + "-other" }

func topicIn(t *testing.T, e *Env, project string) string {
	t.Helper()
	return e.Topic(t, func(p *pubsubpb.Topic) { p.Name = strings.Replace(p.GetName(), "/"+e.Project+"/", "/"+project+"/", 1) })
}

// schemaIn creates a schema with the definition firstRevision, and returns its name.
func schemaIn(t *testing.T, e *Env, project string) string {
	t.Helper()
	name := strings.Replace(e.Name("schemas"), "/"+e.Project+"/", "/"+project+"/", 1)
	schema, err := e.Schema.CreateSchema(t.Context(), createSchemaRequest(name, firstRevision))
	must(t, err)
	return schema.GetName()
}

func deleteTopic(t *testing.T, e *Env, topic string) {
	t.Helper()
	must(t, e.Topics.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: topic}))
}

func seekToTime(t *testing.T, e *Env, sub string, at time.Time) {
	t.Helper()
	must(t, errOf(e.Subs.Seek(t.Context(), &pubsubpb.SeekRequest{
		Subscription: sub, Target: &pubsubpb.SeekRequest_Time{Time: timestamppb.New(at)},
	})))
}

// collect pulls until it has want messages, and once more for messages beyond them. It stops early if a
// Pull gets none, and acknowledges nothing.
func collect(t *testing.T, e *Env, sub string, want int) (messages []*pubsubpb.ReceivedMessage) {
	t.Helper()
	for len(messages) < want {
		next := e.Pull(t, sub, 1000)
		if len(next) == 0 {
			return messages
		}
		messages = append(messages, next...)
	}
	return append(messages, e.Pull(t, sub, 1000)...)
}

// wantTexts pulls, and fails the test unless it gets exactly these texts, in any order.
func wantTexts(t *testing.T, e *Env, sub string, want ...string) []*pubsubpb.ReceivedMessage {
	t.Helper()
	messages := collect(t, e, sub, len(want))
	wantEqual(t, slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(Texts(messages))), "messages")
	return messages
}
