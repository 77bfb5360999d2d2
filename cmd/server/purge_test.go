package main

import (
	"bytes"
	"log/slog"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/localpg"
	"example.com/servicekit/pubsublocal"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
)

// marker is in all texts that a person writes. It is one word in lower case, as search would keep it.
const marker = "zqxjkvbmarker"

// marked returns the tables of a dump that have the marker, as text or as bytes.
func marked(t *testing.T, server *localpg.Server, target string) []string {
	t.Helper()
	dump := exec.CommandContext(t.Context(), filepath.Join(server.Programs(), "pg_dump"), "--dbname="+target)
	var out, errOut bytes.Buffer
	dump.Stdout, dump.Stderr = &out, &errOut
	if err := dump.Run(); err != nil {
		t.Fatalf("pg_dump: %v: %s", err, errOut.String())
	}
	var found []string
	table := ""
	for line := range strings.Lines(out.String()) {
		if rest, ok := strings.CutPrefix(line, "COPY "); ok {
			table, _, _ = strings.Cut(rest, " ")
		}
		hasBytes := strings.Contains(line, "7a71786a6b76626d61726b6572")
		if (strings.Contains(strings.ToLower(line), marker) || hasBytes) && !slices.Contains(found, table) {
			found = append(found, table)
		}
	}
	slices.Sort(found)
	return found
}

// A purge, and the maintenance that it wakes, leave nothing of what a person wrote: not in a row, an event, a request,
// the catalog or the quarantine, although the video is parked. Consumers see the event of the purge, without content.
func TestPurgeLeavesNothing(t *testing.T) {
	t.Parallel()
	server, target := newServer(t, localpg.Config{})
	if _, err := db.Migrate(t.Context(), target, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s := &stack{url: target, migrateURL: target, pubsub: newBroker(t)}
	p := s.start(t, "LAB_OUTBOX_MAX_ATTEMPTS=1") // what is refused is parked
	p.create(t, "kept")
	name, id := p.createMarked(t)
	s.publish(t, newer(t, id))
	eventually(t, time.Minute, "the message is quarantined, and the entry is visible", func() bool {
		return ask[int](t, target, "SELECT (SELECT count(*) FROM video_catalog_read.quarantine)::int + (SELECT count(*) FROM video_catalog_read.video_projection WHERE visible)::int")[0] == 3
	})
	accept := s.pubsub.Inject(pubsublocal.Fault{Method: "Publish", OrderingKey: id, Code: codes.InvalidArgument})
	p.rename(t, name, marker+" again")
	eventually(t, time.Minute, "the video is parked", func() bool {
		return ask[int](t, target, "SELECT count(*)::int FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL")[0] == 1
	})
	if _, err := p.videos.PurgeVideo(t.Context(), &videov1.PurgeVideoRequest{Name: name}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("PurgeVideo() of a video that is not deleted = %v, want FailedPrecondition", err)
	}
	p.delete(t, name)
	eventually(t, time.Minute, "the events are set aside", func() bool {
		return ask[int](t, target, "SELECT count(*)::int FROM video_catalog.outbox_aside")[0] == 2
	})
	accept()
	today := "video_catalog.outbox_p" + time.Now().UTC().Format("20060102")
	before := []string{
		"video_catalog.outbox_aside", today, "video_catalog.videos", "video_catalog_read.quarantine", "video_catalog_read.video_projection",
	}
	if diff := cmp.Diff(before, marked(t, server, target)); diff != "" {
		t.Fatalf("before the purge the marker is in (-want +got):\n%s", diff)
	}

	tombstone, err := p.videos.PurgeVideo(t.Context(), &videov1.PurgeVideoRequest{Name: name})
	if err != nil {
		t.Fatalf("PurgeVideo() = %v", err)
	}
	eventually(t, time.Minute, "the maintenance has run, and the event of the purge is projected", func() bool {
		return ask[int](t, target, "SELECT count(*)::int FROM video_catalog.erasures")[0] == 0 &&
			ask[int](t, target, "SELECT version::int FROM video_catalog_read.video_projection WHERE video_id = $1", id)[0] == int(tombstone.GetVersion())
	})
	nothing := func(when string) {
		t.Helper()
		if got := marked(t, server, target); len(got) > 0 {
			t.Errorf("%s the marker is in %q, want nowhere", when, got)
		}
	}
	nothing("after the purge")
	s.checkPurgeEvent(t, id, tombstone)
	for sql, want := range map[string]int{
		"SELECT count(*)::int FROM video_catalog.requests WHERE aggregate_id = '" + id + "'": 0,
		"SELECT count(*)::int FROM video_catalog.outbox WHERE aggregate_id = '" + id + "'":   1,
		"SELECT count(*)::int FROM video_catalog.outbox_blocked":                             0,
		"SELECT count(*)::int FROM video_catalog_read.quarantine":                            0,
	} {
		if got := ask[int](t, target, sql)[0]; got != want {
			t.Errorf("%s = %d, want %d", sql, got, want)
		}
	}
	response, err := http.Post("http://"+p.addr+"/v1/"+name+":purge", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if n := ask[int](t, target, "SELECT count(*)::int FROM video_catalog.outbox WHERE event_type = 'VideoPurged'")[0]; response.StatusCode != http.StatusOK || n != 1 {
		t.Errorf("a second purge = %s, with %d events, want 200 OK and 1", response.Status, n)
	}
	if _, err := p.videos.GetVideo(t.Context(), &videov1.GetVideoRequest{Name: name}); status.Code(err) != codes.NotFound {
		t.Errorf("GetVideo() = %v, want NotFound", err)
	}
	s.lateEventsBringNothing(t, p, target)
	nothing("after its events came again")
}

// createMarked makes a published video with the marker in all its texts, and returns its name and id.
func (p *process) createMarked(t *testing.T) (name, id string) {
	t.Helper()
	video, err := p.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{RequestId: uuid.NewString(), Video: &videov1.Video{
		Title: "A " + marker, Description: "By " + marker + ".", Tags: []string{marker, "drama"}, ReleaseYear: 1985, Duration: durationpb.New(time.Hour), LanguageCode: "ja",
	}})
	if err != nil {
		t.Fatal(err)
	}
	name = video.GetName()
	p.rename(t, name, marker)
	if _, err := p.videos.PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
	return name, strings.TrimPrefix(name, "videos/")
}

// newer is a message of a video that only a newer build could read.
func newer(t *testing.T, id string) *pubsub.Message {
	t.Helper()
	data, err := proto.Marshal(&videov1.VideoEvent{VideoId: id, Video: &videov1.VideoEvent_Snapshot{Title: marker}})
	if err != nil {
		t.Fatal(err)
	}
	return &pubsub.Message{Data: data, OrderingKey: id, Attributes: map[string]string{
		envelope.AttrEventID: uuid.Must(uuid.NewV7()).String(), envelope.AttrEventType: "VideoUpdated", envelope.AttrAggregateType: event.AggregateVideo,
		envelope.AttrAggregateID: id, envelope.AttrVersion: "1", envelope.AttrSchemaVersion: "99", "note": marker,
	}}
}

// checkPurgeEvent checks that the last message of a video is the event of its purge, without content.
func (s *stack) checkPurgeEvent(t *testing.T, id string, tombstone *videov1.Video) {
	t.Helper()
	var last *localbroker.Message
	for _, m := range s.pubsub.Published() {
		if m.OrderingKey == id {
			last = &m
		}
	}
	if last == nil || last.Attributes[envelope.AttrEventType] != "VideoPurged" {
		t.Fatalf("last message of the video = %v, want VideoPurged", last)
	}
	var got videov1.VideoEvent
	if err := proto.Unmarshal(last.Data, &got); err != nil {
		t.Fatal(err)
	}
	if v := got.GetVideo(); got.GetPurged() == nil || got.GetVersion() != tombstone.GetVersion() || v.GetTitle() != "" || v.GetDescription() != "" || len(v.GetTags()) > 0 || v.GetPurgeTimeMs() == 0 {
		t.Errorf("event = %v, want a purge of version %d without content", &got, tombstone.GetVersion())
	}
}

// lateEventsBringNothing has the events of before the purge come again, and checks that they change nothing.
func (s *stack) lateEventsBringNothing(t *testing.T, p *process, target string) {
	t.Helper()
	ask[int](t, target, "TRUNCATE video_catalog_read.inbox")
	for _, m := range s.pubsub.Published() {
		if m.Attributes[envelope.AttrEventType] != "VideoPurged" && m.Attributes[envelope.AttrSchemaVersion] != "99" {
			maps.DeleteFunc(m.Attributes, func(name, _ string) bool { return strings.HasPrefix(name, "goog") }) // of the broker
			s.publish(t, &pubsub.Message{Data: m.Data, Attributes: m.Attributes})                               // alone, without the purge that once followed
		}
	}
	s.settled(t, target)
	p.checkRepaired(t)
}
