package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/names"
)

// retainAcked has Pub/Sub keep the messages that the projector acknowledges, and returns the id
// of its subscription.
func (s *stack) retainAcked(t testing.TB) (id string) {
	t.Helper()
	client, err := s.pubsub.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	id = names.VideoTopic.Subscription("catalog")
	if _, err := client.SubscriptionAdminClient.UpdateSubscription(t.Context(), &pubsubpb.UpdateSubscriptionRequest{
		Subscription: &pubsubpb.Subscription{Name: fmt.Sprintf("projects/%s/subscriptions/%s", project, id), RetainAckedMessages: true},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"retain_acked_messages"}},
	}); err != nil {
		t.Fatal(err)
	}
	return id
}

// A seek brings back entries that were lost, although the consumer has its old name and the
// inbox had all events. A second one does so, too.
func TestSeekAppliesRetainedEventsAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	id := s.retainAcked(t)
	p := s.start(t)
	since := time.Now().Add(-time.Minute).Format(time.RFC3339)
	for i := range 5 {
		p.create(t, fmt.Sprint("video ", i))
	}
	s.settled(t, s.url)
	want := p.listed(t)
	for range 2 {
		if _, err := s.pool.Exec(t.Context(), "DELETE FROM video_catalog_read.video_projection"); err != nil {
			t.Fatal(err)
		}
		out, err := s.command(t, "seek", id, since, "--reason", "rows were lost")
		if err != nil || !strings.Contains(out, "the inbox has forgotten 10 events") {
			t.Fatalf("seek = %q, %v, want 10 events forgotten", out, err)
		}
		eventually(t, time.Minute, "the catalog is complete again", func() bool { return fmt.Sprint(p.listed(t)) == fmt.Sprint(want) })
	}
	entries := s.audit(t, admin.ActionSeek)
	if len(entries) != 2 {
		t.Fatalf("the audit has %d seeks, want 2", len(entries))
	}
	for _, e := range entries {
		checkAudit(t, e, 10, fmt.Sprintf(`{"subscription": %q, "from": %q}`, id, since), "rows were lost", "[]", "[]")
	}
}

// A mistake in the arguments is told with what to write instead, and nothing is
// forgotten.
func TestSeekRefusesBadArguments(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	id := names.VideoTopic.Subscription("catalog")
	const since = "2026-01-01T00:00:00Z"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{id, "--reason", "x"}, "want SUBSCRIPTION and TIME"},
		{[]string{id, "yesterday", "--reason", "x"}, "want a time such as"},
		{[]string{id, "2999-01-01T00:00:00Z", "--reason", "x"}, "in the future"},
		{[]string{"another", since, "--reason", "x"}, "must be one of the query side: " + id},
		{[]string{"another", since, "--dry-run"}, "must be one of the query side: " + id},
		{[]string{id, since}, "reason"},
		{[]string{id, since, "--all", "--reason", "x"}, "-all"},
	} {
		if out, err := s.command(t, append([]string{"seek"}, tt.args...)...); exitOf(err) != app.ExitUsage || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("seek %q = %q, %v, want exit code %d with %q", tt.args, out, err, app.ExitUsage, tt.want)
		}
	}
	if out, err := s.command(t, "seek", id, since, "--dry-run"); err != nil || out != "the inbox has 0 events; nothing was changed\n" {
		t.Errorf("dry run = %q, %v, want what the inbox has", out, err)
	}
	if rows := s.audited(t); rows != 0 {
		t.Errorf("entries of the audit = %d, want none", rows)
	}
}

// If Pub/Sub refuses, the inbox is empty, which the audit and the message say. The same
// command again does the rest.
func TestSeekThatFailsRunsAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	id, since := names.VideoTopic.Subscription("catalog"), time.Now().Add(-time.Minute).Format(time.RFC3339)
	accept := s.pubsub.Inject(pubsublocal.Fault{Method: "Seek", Code: codes.PermissionDenied})
	if out, err := s.command(t, "seek", id, since, "--reason", "x"); exitOf(err) != app.ExitFailed || !strings.Contains(err.Error(), "seek again") {
		t.Errorf("seek = %q, %v, want exit code %d and what to do", out, err, app.ExitFailed)
	}
	accept()
	if out, err := s.command(t, "seek", id, since, "--reason", "x", "--json"); err != nil || !strings.Contains(out, `"matched":0`) {
		t.Errorf("seek again = %q, %v, want an inbox that is empty", out, err)
	}
	if n := len(s.audit(t, admin.ActionSeek)); n != 2 {
		t.Errorf("the audit has %d seeks, want 2", n)
	}
}
