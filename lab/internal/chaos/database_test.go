package chaos

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

var execute = pgtest.Execute

// fill inserts one published video and its two events into both schemas, all
// consumed, as the service would.
func fill(t *testing.T, pool *pgxpool.Pool) (video uuid.UUID) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	must(t, err)
	err = watchEvents(t.Context(), conn.Conn())
	conn.Release()
	must(t, err)
	video = uuid.Must(uuid.NewV7())
	execute(t, pool, `INSERT INTO video_catalog.videos VALUES ($1, 'command 7', 'd', 1954, 5000, 'ja', '{a,"b c"}', 'published', 2,
		'2026-01-02T03:04:05.006Z', '2026-01-02T03:04:06Z', '2026-01-02T03:04:06Z', NULL)`, video.String())
	for version := range int64(2) {
		id := uuid.Must(uuid.NewV7())
		payload := &videov1.VideoEvent{EventId: id.String(), VideoId: video.String(), Version: version + 1, Video: &videov1.VideoEvent_Snapshot{
			Title: "command 7", Description: "d", ReleaseYear: 1954, DurationMs: 5000, LanguageCode: "ja", Tags: []string{"a", "b c"},
			State: videov1.VideoEvent_STATE_PUBLISHED, CreateTimeMs: 1767323045006, UpdateTimeMs: 1767323046000, PublishTimeMs: 1767323046000,
		}}
		if version == 0 {
			payload.Video.State, payload.Video.UpdateTimeMs, payload.Video.PublishTimeMs = videov1.VideoEvent_STATE_DRAFT, 1767323045006, 0
		}
		bytes, err := proto.Marshal(payload)
		must(t, err)
		typ := []string{"VideoCreated", "VideoPublished"}[version]
		execute(t, pool, `INSERT INTO video_catalog.outbox VALUES ($1, 'video', $2, $3, $4, 1, $5, '2026-01-02T03:04:06Z', NULL)`, id.String(), video.String(), typ, version+1, bytes)
		execute(t, pool, `INSERT INTO video_catalog_read.inbox (consumer, event_id) VALUES ('catalog', $1)`, id.String())
	}
	execute(t, pool, `INSERT INTO video_catalog_read.video_projection (video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version,
			publish_time, update_time, search, change_xid, updated_at)
		VALUES ($1, 'command 7', 'd', 1954, 5000, 'ja', '{a,"b c"}', true, false, 2,
		'2026-01-02T03:04:06Z', '2026-01-02T03:04:06Z', to_tsvector('simple', 'command 7'), '1', now())`, video.String())
	return video
}

// The checker's SQL reads correct tables without a violation, and finds each
// kind of mistake in them.
func TestReadDatabase(t *testing.T) {
	kindOfVersion := map[int64]string{1: kindCreate, 2: kindPublish}
	for _, tt := range []struct {
		name, sql string
		want      []Rule // without UnknownMessage and OutOfOrder, which are not checked here
	}{
		{"sound", `SELECT 1`, nil},
		{"row changed", `UPDATE video_catalog.videos SET title = 'other'`, []Rule{RowDiffers, ProjectionDiffers}},
		{"row gone", `DELETE FROM video_catalog.videos`, []Rule{EventWithoutRow, ProjectionDiffers}},
		{"event gone", `DELETE FROM video_catalog.outbox WHERE version = 1`, []Rule{EventErased}},
		{"event never written", `DELETE FROM chaos.events WHERE version = 1`, []Rule{RowWithoutEvent, CommandLost}},
		{"projection behind", `UPDATE video_catalog_read.video_projection SET version = 1`, []Rule{ProjectionDiffers}},
		{"projection hidden", `UPDATE video_catalog_read.video_projection SET visible = false`, []Rule{ProjectionDiffers}},
		{"search forgotten", `UPDATE video_catalog_read.video_projection SET search = ''`, []Rule{ProjectionDiffers}},
		{"tags changed", `UPDATE video_catalog_read.video_projection SET tags = '{a,b,c}'`, []Rule{ProjectionDiffers}},
		{"projection gone", `DELETE FROM video_catalog_read.video_projection`, []Rule{ProjectionDiffers}},
		{"inbox gone, as after a seek", `DELETE FROM video_catalog_read.inbox`, nil},
		{"never in the inbox", `DELETE FROM chaos.consumed`, []Rule{EventNotConsumed}},
		{"pending", `INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at) SELECT 0, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at FROM video_catalog.outbox`, []Rule{StuckPending}},
		{"blocked", `INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, parked_at, last_error) VALUES ('video', 'x', 0, 3, now(), 'refused')`, []Rule{StuckBlocked}},
		{"leased", `UPDATE video_catalog.outbox_lanes SET token = 1, leased_until = now() + interval '1 hour' WHERE lane = 3`, []Rule{StuckLease}},
		{"quarantined", `INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time) VALUES ('catalog', '1', '', '{}', '', 'r', now())`, []Rule{MessageQuarantined}},
		{"change that no watch sees", `UPDATE video_catalog_read.video_projection SET change_xid = '18446744073709551615'`, []Rule{LeftOver}},
		{"done and not audited", `SET application_name = 'operator';
			INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time) VALUES ('catalog', '1', '', '{}', '', 'r', now());
			DELETE FROM video_catalog_read.quarantine; RESET application_name`, []Rule{LeftOver}},
		{"audited and not done", `INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
			VALUES (gen_random_uuid(), 'a', 'command', 'retry', '{}', 'r', 1, '[]')`, []Rule{LeftOver}},
		{"erasure", `INSERT INTO video_catalog.erasures (aggregate_type, aggregate_id) VALUES ('video', 'x')`, []Rule{LeftOver}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, 2)
			video := fill(t, pool)
			conn, err := pool.Acquire(t.Context())
			must(t, err)
			defer conn.Release()
			before, err := ReadDatabase(t.Context(), conn.Conn())
			must(t, err)
			execute(t, pool, tt.sql)
			h := &History{}
			if h.Database, err = ReadDatabase(t.Context(), conn.Conn()); err != nil {
				t.Fatal(err)
			}
			for _, e := range before.Events {
				h.Answers = append(h.Answers, Answer{Command: 7, Kind: kindOfVersion[e.Version], Outcome: Acknowledged, Video: video, Version: e.Version, State: e.State})
				h.Sightings = append(h.Sightings, Sighting{MessageID: e.ID.String(), Event: e.ID, Video: video, Version: e.Version, Content: e.Content})
			}
			verdict := Check(h)
			delete(verdict.Counts, UnknownMessage) // of events that a case deletes
			delete(verdict.Counts, OutOfOrder)     // of events that a case deletes
			for _, rule := range tt.want {
				if verdict.Counts[rule] == 0 {
					t.Errorf("not found: %s", rule)
				}
				delete(verdict.Counts, rule)
			}
			if len(verdict.Counts) > 0 {
				t.Errorf("found more than wanted: %v", verdict.Violations)
			}
		})
	}
}

// The title contains the number of its command.
func TestCommandOfTitle(t *testing.T) {
	for title, want := range map[string]int64{titleOf(42): 42, "": 0, "Ran": 0, "command x": 0} {
		if got := commandOf(title); got != want {
			t.Errorf("commandOf(%q) = %d, want %d", title, got, want)
		}
	}
	if contentOf("k", map[string]string{"a": "1"}, []byte("x")) == contentOf("k", map[string]string{"a": "2"}, []byte("x")) {
		t.Error("messages that differ in an attribute have the same digest")
	}
	if !strings.HasPrefix(titleOf(1), "command ") {
		t.Error("a title does not begin as commandOf expects")
	}
}
