package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/pubsublocal"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
)

// publish publishes a message to the topic of the videos, as another program
// could.
func (s *stack) publish(t *testing.T, message *pubsub.Message) {
	t.Helper()
	client, err := s.pubsub.Client(t.Context(), project)
	must(t, err)
	defer client.Close()
	publisher := client.Publisher(names.VideoTopic.Name)
	publisher.EnableMessageOrdering = true
	defer publisher.Stop()
	_, err = publisher.Publish(t.Context(), message).Get(t.Context())
	must(t, err)
}

// drain publishes what is pending, and says what it did. While the broker refuses events, it fails.
func TestDrainPublishesEverythingPending(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "ROLES=api")
	for range 10 {
		_, err := p.videos().CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		must(t, err)
	}
	allow := s.pubsub.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.PermissionDenied})
	if out, err := s.command(t, "drain"); err == nil || !strings.Contains(err.Error(), "after 0 events") {
		t.Errorf("drain = %q, %v, want an error after 0 events", out, err)
	}
	allow()
	out, err := s.command(t, "drain")
	if err != nil || !strings.HasPrefix(out, "published 10 events") {
		t.Errorf("drain = %q, %v, want it to publish 10 events", out, err)
	}
	s.checkPublishedOnce(t)
	if out, err := s.command(t, "drain"); err != nil || !strings.HasPrefix(out, "published 0 events") {
		t.Errorf("a second drain = %q, %v, want it to publish nothing", out, err)
	}
}

// drain ends although events are appended as fast as it publishes: here the settlement of each event appends the next
// one. It publishes those that were pending at its start.
func TestDrainEndsUnderWrites(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "ROLES=api")
	for range 10 {
		_, err := p.videos().CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		must(t, err)
	}
	pgtest.Execute(t, s.pool, `CREATE FUNCTION append_next() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		VALUES (old.lane, gen_random_uuid(), old.aggregate_type, old.aggregate_id, old.event_type, old.version + 1, old.schema_version, old.payload, clock_timestamp());
		RETURN NULL;
	END $$`)
	pgtest.Execute(t, s.pool, "CREATE TRIGGER append_next AFTER DELETE ON video_catalog.outbox_pending FOR EACH ROW EXECUTE FUNCTION append_next()")
	out, err := s.commandIn(t, []string{limits + `={"Outbox": {"Batch": 1}}`}, "drain")
	pending, old := s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending"), s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending WHERE version = 1")
	if err != nil || pending != 10 || old > 0 {
		t.Errorf("drain = %q, %v, and left %d events, %d of them from before, want 10 later ones", out, err, pending, old)
	}
}

// stuck shows a refused event, retry publishes it, and skip gives it up.
func TestOperatorFreesBlockedAggregates(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	refuse := s.pubsub.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.InvalidArgument})
	p := s.start(t, limits+`={"Outbox": {"MaxAttempts": 1}}`)
	var ids []string
	for range 4 {
		v, err := p.videos().CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		must(t, err)
		ids = append(ids, strings.TrimPrefix(v.GetName(), "videos/"))
	}
	eventually(t, 20*time.Second, "all are parked", func() bool {
		return s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL") == 4
	})
	refuse()
	list, err := s.command(t, "stuck")
	columns := regexp.MustCompile(`(?m)^\w+ +(\S+) +video +` + ids[1] + ` .* parked +\d+ +.*injected`).FindStringSubmatch(list)
	if err != nil || len(columns) != 2 || strings.Count(list, " parked ") != 4 || !strings.Contains(list, ids[0]) {
		t.Fatalf("stuck = %v\n%s\nwant four parked aggregates with the broker's words", err, list)
	}
	if _, err := s.command(t, "retry", "--aggregate", ids[0], "--why", "fixed"); err != nil {
		t.Errorf("retry = %v", err)
	}
	if out, err := s.command(t, "skip", "--id", columns[1], "--why", "broken"); err != nil || !strings.HasPrefix(out, "skip: 1 of 1; action ") {
		t.Errorf("skip = %q, %v, want that it is skipped", out, err)
	}
	if out, err := s.command(t, "retry", "--all", "--dry-run"); err != nil || out != "2 match; nothing was changed\n" {
		t.Errorf("retry --all --dry-run = %q, %v, want a count of two", out, err)
	}
	if out, err := s.command(t, "retry", "--all", "--why", "fixed"); err != nil || !strings.HasPrefix(out, "retry: 2 of 2; action ") {
		t.Errorf("retry --all = %q, %v, want two", out, err)
	}
	eventually(t, 20*time.Second, "nothing is blocked", func() bool {
		return s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked") == 0 && s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending") == 0
	})
	var published []string
	for _, m := range s.pubsub.Published() {
		published = append(published, m.Attributes[envelope.AttrAggregateID])
	}
	slices.Sort(published)
	if want := slices.Sorted(slices.Values([]string{ids[0], ids[2], ids[3]})); !slices.Equal(published, want) {
		t.Errorf("published events of %q, want those that were retried, of %q", published, want)
	}
}

// A message that cannot be decoded is quarantined. A retry applies the messages that this
// build can decode, and a skip deletes one.
func TestOperatorEmptiesQuarantine(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.start(t)
	s.publish(t, &pubsub.Message{Attributes: map[string]string{envelope.AttrSchemaVersion: "1"}})
	created, err := domain.CreateVideo(uuid.Must(uuid.NewV7()), domain.VideoDetails{Title: "Ran"}, domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()})
	must(t, err)
	message, err := event.EncodeVideo(created)
	must(t, err)
	attributes := message.Attributes()
	attributes[envelope.AttrSchemaVersion] = "2"
	s.publish(t, &pubsub.Message{Data: message.Payload, Attributes: attributes})
	eventually(t, 20*time.Second, "both are quarantined", func() bool {
		return s.count(t, "SELECT count(*) FROM video_catalog_read.quarantine") == 2
	})
	// More messages than the command reads at a time.
	pgtest.Execute(t, s.pool, `INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time)
		SELECT consumer, 'more ' || n, '', '{}', '', 'more', publish_time FROM video_catalog_read.quarantine, generate_series(1, 40) n WHERE reason LIKE '%newer%'`)
	list, err := s.command(t, "stuck")
	if n := strings.Count(list, " quarantined by catalog "); n != 42 || err != nil || !strings.Contains(list, "newer") || !strings.Contains(list, "event_id is missing") {
		t.Errorf("stuck has %d messages, %v, want 42 and both reasons:\n%s", n, err, list)
	}

	// As if a newer build, which reads the message, were deployed.
	pgtest.Execute(t, s.pool, `UPDATE video_catalog_read.quarantine SET attributes = jsonb_set(attributes, '{schema_version}', '"1"')`)
	item := []string{"stuck", "--aggregate", created.Video.ID.String()}
	if out, err := s.command(t, append(item, "--json")...); err != nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, `"consumer":"catalog"`) {
		t.Errorf("%s = %q, %v, want its message", item, out, err)
	}
	out, err := s.command(t, "retry", "--all", "--why", "newer build")
	if exitOf(err) != app.ExitPartly || !strings.Contains(out, "retry: 1 of 42; action ") {
		t.Errorf("retry = %q, %v, want one applied and the others left", out, err)
	}
	if _, err := s.command(t, item...); exitOf(err) != app.ExitNothing {
		t.Errorf("%s = %v, want that it is not stuck", item, err)
	}
	pgtest.WantCount(t, s.pool, 1, "projected videos", "SELECT count(*) FROM video_catalog_read.video_projection WHERE video_id = $1", created.Video.ID)
	id := pgtest.Column[string](t, s.pool, "SELECT id::text FROM video_catalog_read.quarantine LIMIT 1")[0]
	if out, err := s.command(t, "skip", "--id", id, "--why", "broken"); err != nil || !strings.HasPrefix(out, "skip: 1 of 1; action ") {
		t.Errorf("skip = %q, %v, want that it is deleted", out, err)
	}
	if _, err := s.command(t, "skip", "--id", id, "--why", "broken"); exitOf(err) != app.ExitNothing {
		t.Errorf("skip twice = %v, want exit code %d", err, app.ExitNothing)
	}
}
