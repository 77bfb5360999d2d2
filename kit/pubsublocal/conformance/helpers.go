package conformance

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
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
	_, id, _ := strings.Cut(e.Name("schemas"), "/schemas/")
	schema, err := e.Schema.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{
		Parent: "projects/" + project, SchemaId: id,
		Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: firstRevision},
	})
	if err != nil {
		t.Fatalf("CreateSchema: %v", err)
	}
	return schema.GetName()
}

func seekToTime(t *testing.T, e *Env, sub string, at time.Time) {
	t.Helper()
	if _, err := e.Subs.Seek(t.Context(), &pubsubpb.SeekRequest{
		Subscription: sub, Target: &pubsubpb.SeekRequest_Time{Time: timestamppb.New(at)},
	}); err != nil {
		t.Fatalf("Seek: %v", err)
	}
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
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(Texts(messages)))); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	return messages
}

// streamFrom opens a stream like the client does, without limits.
func streamFrom(t *testing.T, e *Env, sub string) pubsubpb.Subscriber_StreamingPullClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := e.Subs.StreamingPull(ctx, singleTry)
	if err != nil {
		t.Fatalf("StreamingPull: %v", err)
	}
	if err := stream.Send(&pubsubpb.StreamingPullRequest{
		Subscription: sub, StreamAckDeadlineSeconds: 10, ClientId: "conformance", ProtocolVersion: 1,
	}); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv returns the reason
		t.Fatalf("StreamingPull: %v", err)
	}
	return stream
}

// nextMessages waits for a response with messages.
func nextMessages(t *testing.T, stream pubsubpb.Subscriber_StreamingPullClient) *pubsubpb.StreamingPullResponse {
	t.Helper()
	for {
		response, err := stream.Recv()
		if err != nil {
			t.Fatalf("StreamingPull: %v", err)
		}
		if len(response.GetReceivedMessages()) > 0 {
			return response
		}
	}
}

// endOf reads a stream to its end, and returns the error of the end.
func endOf(t *testing.T, stream pubsubpb.Subscriber_StreamingPullClient) error {
	t.Helper()
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}
