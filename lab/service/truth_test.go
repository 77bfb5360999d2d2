package service

import (
	"fmt"
	"html"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/pubsublocal"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/names"
)

// truth compares what pages and commands say with what the database has.
type truth struct {
	*system

	console string // its URL
}

// page returns a page of the console.
func (s *truth) page(path string) string {
	s.Helper()
	return html.UnescapeString(s.fetch(s.console + path))
}

// says checks that an event of a video is in a state, by command and on its page.
func (s *truth) says(id string, version int, state string) {
	s.Helper()
	out, page := s.command("show", "video", id), s.page("/aggregates/video/"+id)
	if !regexp.MustCompile(fmt.Sprintf(`(?m)^%d +\w+ +\S+ +\S+ +%s `, version, state)).MatchString(out) {
		s.Errorf("version %d is not %s by command:\n%s", version, state, out)
	}
	if !regexp.MustCompile(fmt.Sprintf(`(?s)<td class="n">%d</td>[^\n]*<span class="step[^"]*">%s</span>`, version, state)).MatchString(page) {
		s.Errorf("version %d is not %s on its page:\n%s", version, state, page)
	}
}

// eventuallySays waits until the console's page Now has a text.
func (s *truth) eventuallySays(text string) {
	s.Helper()
	s.eventually("the console says "+text, func() bool { return strings.Contains(s.page("/"), text) })
}

func (s *truth) count(sql string) string { return strconv.Itoa(value[int](s.system, sql)) }

func newTruth(t *testing.T) *truth {
	t.Helper()
	s := &truth{system: newSystem(t, tools{server: server(t)})}
	s.serve("api,publisher,projector", "LAB_OUTBOX_MAX_ATTEMPTS=3")
	address := freeAddr(t)
	start(t, s.environ, s.server, "console", "--addr", address)
	s.console = "http://" + strings.Replace(address, "127.0.0.1", "localhost", 1)
	s.eventually("the console serves", func() bool {
		response, err := http.Get(s.console + "/")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return s
}

const (
	blockedRows     = `SELECT count(*)::int FROM video_catalog.outbox_blocked`
	quarantinedRows = `SELECT count(*)::int FROM video_catalog_read.quarantine`
	appliedRows     = `SELECT count(*)::int FROM video_catalog_read.inbox`
)

// After each fault, made for real, the commands, the pages and the database say the same.
func TestOperatorsSeeTheTruth(t *testing.T) {
	t.Parallel()
	s := newTruth(t)
	video, err := s.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "The Third Man"}})
	must(t, err)
	id := strings.TrimPrefix(video.GetName(), "videos/")
	s.eventually("version 1 is applied", func() bool { return value[int](s.system, appliedRows) == 1 })
	s.says(id, 1, "published")
	for _, step := range [][2]string{{"edited by hand", ", and differs from its owner in title."}, {"The Third Man", "."}} {
		s.exec(`UPDATE video_catalog_read.video_projection SET title = $1`, step[0])
		for _, out := range []string{s.command("show", "video", id), s.page("/aggregates/video/" + id)} {
			if !strings.Contains(out, "The projection has version 1 of 1"+step[1]) {
				t.Errorf("with the title %q in the catalog:\n%s", step[0], out)
			}
		}
	}

	// The broker refuses version 2. Version 3 waits behind it.
	allow := s.broker.Inject(pubsublocal.Fault{Method: "Publish", OrderingKey: id, Code: codes.InvalidArgument})
	_, err = s.videos.PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: video.GetName()})
	must(t, err)
	s.eventually("it is parked", func() bool { return value[int](s.system, blockedRows+" WHERE parked_at IS NOT NULL") == 1 })
	_, err = s.videos.UnpublishVideo(t.Context(), &videov1.UnpublishVideoRequest{Name: video.GetName()})
	must(t, err)
	s.eventually("version 3 is deferred", func() bool {
		return value[int](s.system, `SELECT count(*)::int FROM video_catalog.outbox_deferred`) == 2
	})
	s.says(id, 2, "refused")
	s.says(id, 3, "waiting")
	refused := value[string](s.system, `SELECT id::text FROM video_catalog.outbox_deferred ORDER BY seq LIMIT 1`)
	for name, out := range map[string]string{"stuck": s.command("stuck"), "page": s.page("/stuck")} {
		if !strings.Contains(out, refused) || !strings.Contains(out, id) {
			t.Errorf("%s lacks event %s of %s:\n%s", name, refused, id, out)
		}
	}
	for _, out := range []string{s.command("find", "third m"), s.page("/stuck")} { // found and titled while it is stuck
		if !strings.Contains(out, id) || !strings.Contains(out, "The Third Man") {
			t.Errorf("the title is not found:\n%s", out)
		}
	}
	s.eventuallySays("<strong>" + s.count(`SELECT count(*)::int FROM video_catalog.outbox_deferred`) + "</strong><span>pending")
	if out := s.command("status"); !regexp.MustCompile(`blocked aggregates +1, of them parked 1\n`).MatchString(out) {
		t.Errorf("the status does not count the deferred event:\n%s", out)
	}
	s.exec(`UPDATE video_catalog.outbox_deferred SET occurred_at = occurred_at - interval '2 hours'`) // time passes
	s.eventuallySays("The oldest pending event waits since ")

	// The event is skipped.
	allow()
	s.command("skip", "--id", refused, "--why", "too large")
	s.eventually("version 3 is applied", func() bool { return value[int](s.system, appliedRows) == 2 })
	s.says(id, 2, "skipped")
	s.says(id, 3, "published")
	for name, out := range map[string]string{"audit": s.command("audit", id), "show": s.command("show", "video", id), "page": s.page("/audit?text=" + id)} {
		if !strings.Contains(out, "too large") || !strings.Contains(out, value[string](s.system, `SELECT action_id::text FROM video_catalog.audit`)) {
			t.Errorf("%s lacks the skip:\n%s", name, out)
		}
	}

	// A message about the video cannot be applied.
	event := uuid.Must(uuid.NewV7()).String()
	if _, err := s.client.Publisher(names.VideoTopic.Name).Publish(t.Context(), &pubsub.Message{Attributes: map[string]string{
		envelope.AttrEventID: event, envelope.AttrAggregateType: "video", envelope.AttrAggregateID: id, envelope.AttrSchemaVersion: "99",
	}}).Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is in quarantine", func() bool { return value[int](s.system, quarantinedRows) == 1 })
	if out := s.command("show", "video", id); !regexp.MustCompile(`message \d+ is in quarantine of catalog: ".+"`).MatchString(out) {
		t.Errorf("the command does not show the message:\n%s", out)
	}
	if out := s.page("/aggregates/video/" + id); !strings.Contains(out, "1 of its messages could not be applied") {
		t.Errorf("the page does not show the message:\n%s", out)
	}
	if out, n := s.command("status"), s.count(quarantinedRows); !strings.Contains(out, "messages in quarantine") || !regexp.MustCompile(`quarantine +`+n+`\n`).MatchString(out) {
		t.Errorf("the status has another count than %s:\n%s", n, out)
	}
	s.eventuallySays("1 message is in quarantine")
	s.command("skip", "--aggregate", id, "--id", event, "--why", "from a test")

	// A seek empties the inbox. Afterwards nothing may say that an applied event was not applied.
	s.broker.Inject(pubsublocal.Fault{Method: "StreamingPull", Code: codes.PermissionDenied})
	s.command("seek", "video.events.catalog", time.Now().UTC().Format(time.RFC3339), "--why", "rows were lost")
	s.eventually("now says that no event was not applied", func() bool { return !strings.Contains(s.page("/"), "not applied") })
	for name, out := range map[string]string{"command": s.command("show", "video", id), "page": s.page("/aggregates/video/" + id)} {
		if strings.Contains(out, "not applied") {
			t.Errorf("after a seek the %s says that an event was not applied:\n%s", name, out)
		}
	}

	// Three entries are damaged.
	s.exec(`INSERT INTO video_catalog_read.video_projection (video_id, event_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, update_time, search, change_xid, updated_at)
		SELECT gen_random_uuid(), event_id, 'damaged', description, release_year, duration_ms, language_code, tags, visible, deleted, version, update_time, search, change_xid, updated_at
		FROM video_catalog_read.video_projection, generate_series(1, 3) LIMIT 3`)
	compare := exec.CommandContext(t.Context(), s.server, "projection", "compare")
	compare.Env = s.environ
	if out, err := compare.CombinedOutput(); compare.ProcessState.ExitCode() != app.ExitDiffers || !strings.Contains(string(out), "extra 3") {
		t.Errorf("the comparison says %v, want 3 entries without an owner:\n%s", err, out)
	}
	s.eventuallySays("3 entries differ from their owner")

	// The video is purged. Its events are not shown as published before they are erased.
	_, err = s.videos.DeleteVideo(t.Context(), &videov1.DeleteVideoRequest{Name: video.GetName()})
	must(t, err)
	_, err = s.videos.PurgeVideo(t.Context(), &videov1.PurgeVideoRequest{Name: video.GetName()})
	must(t, err)
	for name, out := range map[string]string{"command": s.command("show", "video", id), "page": s.page("/aggregates/video/" + id)} {
		if !strings.Contains(strings.ToLower(out), "it is being erased") || strings.Contains(out, "repair") || strings.Contains(out, "The Third Man") ||
			regexp.MustCompile(`(?m)^[1-4] .* published `).MatchString(out) {
			t.Errorf("after a purge the %s says:\n%s", name, out)
		}
	}
}
