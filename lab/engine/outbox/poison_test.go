package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/engine/rig"
)

// The client sends several messages of a key in one request. The broker refuses
// the whole request if one message does not fit the schema of the topic. This
// message is found and parked, and the messages before it are published.
func TestPoisonInARequestIsFound(t *testing.T) {
	t.Parallel()
	for _, maxAttempts := range []int{1, 3} {
		t.Run(fmt.Sprint(maxAttempts), func(t *testing.T) { findPoison(t, maxAttempts) })
	}
}

func findPoison(t *testing.T, maxAttempts int) {
	t.Parallel()
	const events, poisoned = 5, 3
	s := newTable(t)
	client, server := newClient(t)
	const project, topic = "projects/test-project", "projects/test-project/topics/with-schema"
	conn, err := grpc.NewClient(server.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	schema, err := pubsubpb.NewSchemaServiceClient(conn).CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{
		Parent: project, SchemaId: "known",
		Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: `syntax = "proto3"; message Event { string known = 1; }`},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{
		Name: topic, SchemaSettings: &pubsubpb.SchemaSettings{Schema: schema.GetName(), Encoding: pubsubpb.Encoding_BINARY},
	}); err != nil {
		t.Fatal(err)
	}
	broker := outbox.NewTopic(client.Publisher(topic), requestTimeout, 1000)
	t.Cleanup(broker.Stop)
	const known, unknown = "\x0a\x01x", "\x12\x01x" // fields 1 and 2
	id := uuid.Must(uuid.NewV7())
	for version := 1; version <= events; version++ {
		e := newEvent(id)
		e.Version, e.Payload = int64(version), []byte(known)
		if version == poisoned {
			e.Payload = []byte(unknown)
		}
		pgtest.Append(t, s.pool, e)
	}
	stop := s.publish(outbox.Config{Workers: 1, MaxAttempts: maxAttempts, PollInterval: 5 * time.Millisecond}, nil, broker)
	defer stop()
	var blocked []pg.Blocked
	pgtest.Eventually(t, 20*time.Second, "it is parked", func() bool {
		var err error
		if blocked, err = listBlocked(t, s.pool); err != nil {
			t.Fatal(err)
		}
		return len(blocked) == 1 && !blocked[0].ParkedAt.IsZero()
	})
	if got, attempts := blocked[0], max(2, maxAttempts); got.Version != poisoned || got.Attempts != attempts {
		t.Errorf("version %d is parked after %d attempts, want version %d after %d", got.Version, got.Attempts, poisoned, attempts)
	}
	if got := len(server.Published()); got != poisoned-1 {
		t.Errorf("%d events are published, want the %d before it", got, poisoned-1)
	}
	if _, err := pg.NewOutbox(s.pool).SkipBlocked(t.Context(), blocked, rig.Operator); err != nil {
		t.Fatal(err)
	}
	s.settled()
	if got := len(server.Published()); got != events-1 {
		t.Errorf("%d events are published, want all but one of %d", got, events)
	}
}
