package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
)

// A seek brings back entries that were lost, although the consumer has its old name and the
// inbox had all events. A second one does so, too.
func TestSeekAppliesRetainedEventsAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	client, err := s.pubsub.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	id := names.TopicOf(event.AggregateVideo).Subscription("catalog")
	if _, err := client.SubscriptionAdminClient.UpdateSubscription(t.Context(), &pubsubpb.UpdateSubscriptionRequest{
		Subscription: &pubsubpb.Subscription{Name: fmt.Sprintf("projects/%s/subscriptions/%s", project, id), RetainAckedMessages: true},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"retain_acked_messages"}},
	}); err != nil {
		t.Fatal(err)
	}
	p := s.start(t)
	since := time.Now().Add(-time.Minute).Format(time.RFC3339)
	for i := range 5 {
		p.create(t, fmt.Sprint("video ", i))
	}
	s.settled(t, s.url)
	want := p.listed(t)
	for generation := 1; generation <= 2; generation++ {
		if _, err := s.pool.Exec(t.Context(), "DELETE FROM video_catalog_read.video_projection"); err != nil {
			t.Fatal(err)
		}
		out, err := s.command(t, "seek", id, since)
		if err != nil || !strings.Contains(out, fmt.Sprintf("generation %d of the inbox", generation)) {
			t.Fatalf("seek = %q, %v, want generation %d", out, err, generation)
		}
		eventually(t, time.Minute, "the catalog is complete again", func() bool { return fmt.Sprint(p.listed(t)) == fmt.Sprint(want) })
	}
}

// A mistake in the arguments is told with what to write instead, and nothing is
// forgotten.
func TestSeekRefusesBadArguments(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	id := names.TopicOf(event.AggregateVideo).Subscription("catalog")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{id}, "want SUBSCRIPTION and TIME"},
		{[]string{id, "yesterday"}, "want a time such as"},
		{[]string{id, "2999-01-01T00:00:00Z"}, "in the future"},
		{[]string{"another", "2026-01-01T00:00:00Z"}, "this service has " + id},
	} {
		if out, err := s.command(t, append([]string{"seek"}, tt.args...)...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("seek %q = %q, %v, want %q", tt.args, out, err, tt.want)
		}
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog_read.inbox_generations"); n != 0 {
		t.Errorf("generations = %d, want none", n)
	}
}
