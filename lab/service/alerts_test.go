package service

import (
	"context"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/pubsublocal"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
)

// alerts is the folder of the rules.
const alerts = root + "/deploy/observe/"

// Prometheus accepts the rules, and they fire exactly when they should.
func TestRulesWithPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool is not installed, so the rules were not run: apt-get install prometheus")
		return
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml", "alerts.cloud.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = alerts
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Each fault is made in a running service that a Prometheus scrapes, with the rules of alerts.yaml made up to 300 times
// faster: see speedUp. Its alert fires, and resolves after the remedy of its runbook. No other alert fires, except those
// that a busy machine causes at this pace.
func TestAlertsFireAndResolve(t *testing.T) {
	t.Parallel()
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Log("prometheus is not installed, so no alert was fired: apt-get install prometheus")
		return
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("promtool should be beside prometheus: %v", err)
	}
	tools := tools{server: filepath.Join(t.TempDir(), "server"), prometheus: prometheus, promtool: promtool}
	must(t, buildServer(tools.server, t.TempDir(), withTimers(t)))
	want, got := map[string]bool{}, map[string]bool{}
	for _, rule := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(read(t, alerts+"alerts.yaml"), -1) {
		want[rule[1]] = true
	}
	var mu sync.Mutex // guards got
	t.Run("faults", func(t *testing.T) {
		for name, makeFaults := range map[string]func(*system){
			"broker away, nobody there": brokerAwayAndNobodyThere,
			"poison, skipped":           poisonSkipped,
			"no partitions":             noPartitions,
			"slow catalog, duplicates":  slowCatalogAndDuplicates,
			"small pool, quarantine":    smallPoolAndQuarantine,
			"nothing received":          nothingReceived,
			"replaced database":         replacedDatabase,
			"edited catalog":            editedCatalog,
			"timers":                    timersLateAndBroken,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newSystem(t, tools)
				makeFaults(s)
				mu.Lock()
				defer mu.Unlock()
				for alert := range s.resolved {
					got[alert] = true
				}
			})
		}
	})
	if filter := flag.Lookup("test.run").Value.String(); !strings.Contains(filter, "/") && !t.Failed() {
		pgtest.Same(t, "alerts that fired and resolved", want, got)
	}
}

// withTimers returns the files of an overlay that adds testdata/timed.go to the service, which has no timer.
func withTimers(t *testing.T) map[string]string {
	t.Helper()
	dir, server := t.TempDir(), filepath.Join(root, "cmd", "server")
	server, err := filepath.Abs(server)
	must(t, err)
	added, err := filepath.Abs("testdata/timed.go")
	must(t, err)
	const list = "registrations.go"
	changed := strings.Replace(read(t, filepath.Join(server, list)), "videos()", "timed(videos())", 1)
	must(t, os.WriteFile(filepath.Join(dir, list), []byte(changed), 0o600))
	return map[string]string{
		filepath.Join(server, list):       filepath.Join(dir, list),
		filepath.Join(server, "timed.go"): added,
	}
}

// Publishing fails. Later the only process is stopped.
func brokerAwayAndNobodyThere(s *system) {
	service := s.serve("api,publisher,projector")
	s.quiet()
	s.broker.SetDown(true)
	s.create()
	s.fire("OutboxStalled", "BreakerOpen")
	s.broker.SetDown(false)
	s.resolve()

	service.kill()
	s.fire("OutboxNotMeasured")
	s.serve("api,publisher,projector")
	s.resolve()
}

// The broker refuses one video because of its content, until a person skips the event. The next version then follows a
// gap. Later the broker refuses all messages.
func poisonSkipped(s *system) {
	s.serve("api,publisher,projector", "LAB_OUTBOX_MAX_ATTEMPTS=3")
	s.quiet()
	video := s.create()
	id := strings.TrimPrefix(video.GetName(), "videos/")
	s.eventually("the event is in the catalog", func() bool {
		return value[int](s, `SELECT count(*) FROM video_catalog_read.video_projection`) == 1
	})
	remove := s.broker.Inject(pubsublocal.Fault{Method: "Publish", OrderingKey: id, Code: codes.InvalidArgument})
	published, err := s.videos.PublishVideo(s.Context(), &videov1.PublishVideoRequest{Name: video.GetName()})
	must(s, err)
	_, err = s.videos.UnpublishVideo(s.Context(), &videov1.UnpublishVideoRequest{Name: published.GetName()})
	must(s, err)
	s.fire("AggregateBlocked", "AggregateParked")
	remove()
	event := value[string](s, `SELECT id::text FROM video_catalog.outbox_deferred ORDER BY seq LIMIT 1`)
	if list := s.command("stuck"); !strings.Contains(list, event) {
		s.Errorf("server stuck = %s, want event %s in it", list, event)
	}
	s.command("skip", "--id", event, "--why", "too large")
	s.fire("VersionGaps")
	s.resolve()

	allow := s.broker.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.InvalidArgument})
	stop := s.repeat(20*time.Millisecond, func(context.Context) { s.create() })
	s.fire("DeliveryFails")
	stop()
	allow()
	s.command("retry", "--all", "--why", "the schema is new")
	s.resolve()
}

// The outbox has no partitions any more, so every command fails.
func noPartitions(s *system) {
	s.serve("api,publisher,projector")
	s.quiet()
	s.exec(`DO $$ DECLARE part regclass; BEGIN
		FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'video_catalog.outbox'::regclass LOOP
			EXECUTE 'DROP TABLE ' || part;
		END LOOP;
	END $$`)
	s.repeat(50*time.Millisecond, func(ctx context.Context) {
		_, _ = s.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}}) // it fails, and the failure is counted
	})
	s.fire("PartitionsRunOut", "PartitionsBehind", "ErrorBudgetBurnsFast", "ErrorBudgetBurns")
	s.exec(`SELECT video_catalog.outbox_maintain(7, interval '7 days')`)
	s.resolve()
}

// The database of the catalog is slow under a constant load. Later most messages are duplicates.
func slowCatalogAndDuplicates(s *system) {
	s.serve("api,publisher,projector")
	s.quiet()
	s.repeat(50*time.Millisecond, func(context.Context) { s.create() })
	s.exec(`CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END'`)
	s.exec(`CREATE TRIGGER slow BEFORE INSERT ON video_catalog_read.video_projection FOR EACH STATEMENT EXECUTE FUNCTION public.slow()`)
	s.fire("ProjectionLag")
	s.exec(`DROP TRIGGER slow ON video_catalog_read.video_projection`)
	s.resolve()

	// Published messages are published again and again.
	sent := s.broker.Published()[0]
	maps.DeleteFunc(sent.Attributes, func(name, _ string) bool { return strings.HasPrefix(name, "goog") }) // Pub/Sub sets these attributes
	again := func(ctx context.Context) {
		topic := s.client.Publisher(names.VideoTopic.Name)
		defer topic.Stop()
		for range 10 {
			topic.Publish(ctx, &pubsub.Message{Data: sent.Data, Attributes: sent.Attributes})
		}
	}
	stop := s.repeat(50*time.Millisecond, again)
	s.fire("DuplicatesMany")
	stop()
	s.resolve()
}

// Callers have two connections, and each call holds one for 50 ms. Also, a foreign message is quarantined.
func smallPoolAndQuarantine(s *system) {
	s.serve("api", "DATABASE_MAX_CONNS=5") // three of them are not for calls
	s.serve("publisher,projector")
	s.pace = slowPace
	s.quiet()
	s.exec(`CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END'`)
	s.exec(`CREATE TRIGGER slow BEFORE INSERT ON video_catalog.videos FOR EACH STATEMENT EXECUTE FUNCTION public.slow()`)
	var stops []func()
	for range 10 {
		stops = append(stops, s.repeat(0, func(context.Context) { s.create() }))
	}
	s.fire("PoolExhausted")
	for _, stop := range stops {
		stop()
	}
	s.resolve()

	// It fits the schema of the topic, because all fields are optional, but it has no envelope.
	result := s.client.Publisher(names.VideoTopic.Name).Publish(s.Context(), &pubsub.Message{Attributes: map[string]string{"name": "not an event"}})
	_, err := result.Get(s.Context())
	must(s, err)
	s.fire("QuarantineNotEmpty")
	s.command("skip", "--cause", "event_id is missing", "--why", "broken")
	s.resolve()
}

// The projector may not read its subscription, until it may again.
func nothingReceived(s *system) {
	allow := s.broker.Inject(pubsublocal.Fault{Method: "StreamingPull", Code: codes.PermissionDenied})
	s.serve("api,publisher,projector")
	s.pace = slowPace
	s.quiet()
	s.fire("NothingApplied")
	allow()
	s.create()
	s.resolve()
}

// The catalog comes from another history of its database, as after a failover, until it is repaired.
func replacedDatabase(s *system) {
	s.serve("api,publisher,projector")
	s.quiet()
	s.exec(`UPDATE video_catalog_read.known_database SET identity = 'before'`)
	s.fire("DatabaseReplaced")
	s.command("projection", "repair", "--all", "--why", "failover")
	s.resolve()
}

// A comparison has found an entry that somebody edited, until one finds none.
func editedCatalog(s *system) {
	s.serve("api,publisher,projector")
	s.quiet()
	s.exec(`INSERT INTO video_catalog_read.comparisons (aggregate_type, claim, next_time, begin_time, after_id, last_time, last_differences)
		VALUES ('video', 1, now() + interval '1 day', now(), '00000000-0000-0000-0000-000000000000', now(), 1)`)
	s.fire("ProjectionDiffers")
	s.exec(`UPDATE video_catalog_read.comparisons SET last_differences = 0`)
	s.resolve()
}

// A timer is due, and no process fires timers. Later a timer fails, until its command works.
func timersLateAndBroken(s *system) {
	s.serve("api,publisher,projector")
	s.quiet()
	id := strings.TrimPrefix(s.create().GetName(), "videos/")
	setTimer := func() {
		s.exec(`INSERT INTO video_catalog.timers (aggregate_type, aggregate_id, name, due_at, causation_id, correlation_id)
			VALUES ('video', $1, 'publish', now(), $1, $1) ON CONFLICT (aggregate_type, aggregate_id, name) DO UPDATE SET due_at = now()`, id) // the service may have set it
	}
	setTimer()
	s.fire("TimersLate")
	s.serve("reactor")
	s.resolve()

	s.exec(`UPDATE video_catalog.videos SET description = 'broken' WHERE id = $1`, id)
	setTimer()
	s.fire("TimersFail")
	s.exec(`UPDATE video_catalog.videos SET description = '' WHERE id = $1`, id)
	s.eventually("the timer fires", func() bool { return value[int](s, `SELECT count(*) FROM video_catalog.timers`) == 0 })
	s.resolve()
}
