package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// marker is a text in every field that a person writes.
const marker = "Kurosawa"

// change applies a decision to a video.
func change(t testing.TB, videos *store.Videos, id uuid.UUID, decide domain.VideoDecision) domain.Video {
	t.Helper()
	v, err := videos.ChangeVideo(t.Context(), id, decide)
	must(t, err)
	return v
}

// deletedVideo creates a video with a request id, changes it, and deletes it. It has five events.
func deletedVideo(t testing.TB, videos *store.Videos, title string) uuid.UUID {
	t.Helper()
	e := created(t, title)
	e.Video.Description, e.Video.Tags, e.Video.CreateUser = title, []string{title}, title
	_, err := videos.CreateVideo(t.Context(), uuid.New(), []byte(title), e)
	must(t, err)
	for _, decide := range []domain.VideoDecision{
		domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = title + "!" }, 1, stamp(t)),
		domain.PublishVideo(2, stamp(t)), domain.UnpublishVideo(3, stamp(t)), domain.DeleteVideo(false, 4, stamp(t)),
	} {
		change(t, videos, e.Video.ID, decide)
	}
	return e.Video.ID
}

// erase erases all that is queued, a few rows at a time.
func erase(t testing.TB, eraser *store.Eraser, maxRows int) {
	t.Helper()
	for more := true; more; {
		var err error
		more, err = eraser.Erase(t.Context(), maxRows)
		must(t, err)
	}
}

// tablesWith returns the tables of both schemas that have a text, as text or as bytes.
func tablesWith(t testing.TB, pool *pgxpool.Pool, text string) []string {
	t.Helper()
	var found []string
	for _, table := range column(t, pool, "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace IN ('video_catalog'::regnamespace, 'video_catalog_read'::regnamespace) ORDER BY 1") {
		sql := fmt.Sprintf("SELECT count(*) FROM %s r WHERE r::text ILIKE '%%' || $1 || '%%' OR r::text ILIKE '%%' || encode($1::bytea, 'hex') || '%%'", table)
		if count(t, pool, sql, text) > 0 {
			found = append(found, table)
		}
	}
	return found
}

// A purge erases the row and the pending events at once, and the eraser the rest. Other
// videos, and the event of the purge, stay.
func TestPurgeErasesTheCommandSide(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	user := userPool(t, pool, videoRole)
	videos := store.NewVideos(user, nil)
	id, other := deletedVideo(t, videos, marker), deletedVideo(t, videos, "Ozu")
	if got := tablesWith(t, pool, marker); len(got) != 4 {
		t.Fatalf("before the purge %s is in %q, want four tables: the test does not test much", marker, got)
	}

	purge := stamp(t)
	purge.Caller = "ann@example.com"
	got := change(t, videos, id, domain.PurgeVideo(5, purge))
	if !got.Purged() || got.Version != 6 || !cmp.Equal(got.VideoDetails, domain.VideoDetails{}) {
		t.Errorf("ChangeVideo() = %+v, want a tombstone of version 6", got)
	}
	today := "video_catalog.outbox_p" + time.Now().UTC().Format("20060102")
	if got, want := tablesWith(t, pool, marker), []string{today, "video_catalog.requests"}; !slices.Equal(got, want) {
		t.Errorf("after the purge %s is in %q, want %q", marker, got, want)
	}
	if got, want := column(t, pool, "SELECT event_type FROM video_catalog.outbox_pending WHERE aggregate_id = '"+id.String()+"'"), []string{"VideoPurged"}; !slices.Equal(got, want) {
		t.Errorf("pending = %q, want %q", got, want)
	}
	erase(t, store.NewEraser(pool), 2)
	if got := tablesWith(t, pool, marker); len(got) > 0 {
		t.Errorf("after the erasure %s is in %q, want nowhere", marker, got)
	}
	for sql, want := range map[string]int{
		"SELECT count(*) FROM video_catalog.erasures":                              0,
		"SELECT count(*) FROM video_catalog.outbox":                                6, // five of the other video
		"SELECT count(*) FROM video_catalog.outbox WHERE event_type='VideoPurged'": 1,
		"SELECT count(*) FROM video_catalog.requests":                              1,
		"SELECT count(*) FROM video_catalog.outbox_pending":                        6,
	} {
		wantCount(t, pool, want, sql, sql)
	}

	// A repeated call has no effect, and no other call finds the video.
	if again := change(t, videos, id, domain.PurgeVideo(5, stamp(t))); !cmp.Equal(again, got, cmp.Comparer(func(a, b []string) bool { return slices.Equal(a, b) })) {
		t.Errorf("ChangeVideo() again = %+v, want %+v", again, got)
	}
	wantCount(t, pool, 1, "events after a second purge", "SELECT count(*) FROM video_catalog.outbox WHERE aggregate_id = $1", id.String())
	const audited = "SELECT concat_ws(' ', action, filter, actor, via, items, before, create_time > now() - interval '1 hour') FROM video_catalog.audit"
	if got, want := column(t, pool, audited), []string{`purge {"type": "video", "aggregate": "` + id.String() + `"} ann@example.com api 1 [] t`}; !slices.Equal(got, want) {
		t.Errorf("the audit has %q, want one purge: %q", got, want)
	}
	if _, err := videos.GetVideo(t.Context(), id); kindOf(err) != problem.NotFound {
		t.Errorf("GetVideo() = %v, want NotFound", err)
	}
	if _, err := videos.ChangeVideo(t.Context(), newID(t), domain.PurgeVideo(domain.AnyVersion, stamp(t))); kindOf(err) != problem.NotFound {
		t.Errorf("ChangeVideo() of an unknown video = %v, want NotFound", err)
	}
	for _, oldestFirst := range []bool{false, true} {
		for query, want := range map[domain.VideoQuery]int{
			{ShowDeleted: true}: 1, {ShowPurged: true}: 2, {ShowDeleted: true, ShowPurged: true}: 2, {}: 0,
		} {
			query.OldestFirst, query.Limit = oldestFirst, 10
			listed, _, err := videos.ListVideos(t.Context(), query)
			if err != nil || len(listed) != want {
				t.Errorf("ListVideos(%+v) = %d videos, %v, want %d", query, len(listed), err, want)
			}
		}
	}
	if v, err := videos.GetVideo(t.Context(), other); err != nil || v.Version != 5 {
		t.Errorf("GetVideo() of another video = %+v, %v, want version 5", v, err)
	}
}

// When any statement of a purge fails, nothing is erased, and a repeated call does all of it.
func TestFailedPurgeErasesNothing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, table, on string }{
		{"deferred events", "video_catalog.outbox_deferred", "DELETE"},
		{"blocked aggregate", "video_catalog.outbox_blocked", "DELETE"},
		{"queue", "video_catalog.erasures", "INSERT"},
		{"row", "video_catalog.videos", "UPDATE"},
		{"event", "video_catalog.outbox", "INSERT"},
		{"pending event", "video_catalog.outbox_pending", "INSERT"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, 2)
			videos, events := store.NewVideos(pool, nil), pg.NewOutbox(pool)
			id := deletedVideo(t, videos, marker)
			block(t, events, true)
			before := tablesWith(t, pool, marker)
			execute(t, pool, fmt.Sprintf(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken on purpose'; END $$;
				CREATE TRIGGER refuse BEFORE %s ON %s FOR EACH ROW EXECUTE FUNCTION refuse()`, test.on, test.table))
			if v, err := videos.ChangeVideo(t.Context(), id, domain.PurgeVideo(5, stamp(t))); err == nil {
				t.Errorf("ChangeVideo() = %+v, want an error", v)
			}
			if got := tablesWith(t, pool, marker); !slices.Equal(got, before) {
				t.Errorf("%s is in %q, want %q", marker, got, before)
			}
			execute(t, pool, "DROP FUNCTION refuse CASCADE")
			change(t, videos, id, domain.PurgeVideo(5, stamp(t)))
			erase(t, store.NewEraser(pool), 10)
			if got := tablesWith(t, pool, marker); len(got) > 0 {
				t.Errorf("%s is in %q, want nowhere", marker, got)
			}
		})
	}
}

// claim claims the events of a lane that has work.
func claim(t testing.TB, events *pg.Outbox) outbox.Claim {
	t.Helper()
	claim, err := events.ClaimEvents(t.Context(), outbox.Limits{Lanes: 1, Events: 100, Bytes: 1 << 20, Lease: time.Minute})
	must(t, err)
	return claim
}

// settle settles a claim with a given result.
func settle(t testing.TB, events *pg.Outbox, s outbox.Settlement) {
	t.Helper()
	if held, err := events.SettleClaim(t.Context(), s); err != nil || !held {
		t.Fatalf("SettleClaim() = %t, %v, want true, nil", held, err)
	}
}

// block has the broker refuse the first pending event, and parks its aggregate if park is set.
func block(t testing.TB, events *pg.Outbox, park bool) {
	t.Helper()
	s := pgtest.Settlement(claim(t, events), func(outbox.Claimed) bool { return true })
	s.Refused[0].Error = "refused: " + marker
	if park {
		s.Refused[0].RetryIn = 0
	}
	settle(t, events, s)
}

// Publishers may have claimed any events when a video is purged, with any result. The event of
// the purge is published, as the last one, and nothing stays blocked.
func TestPurgeAmongPublishers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	videos, events := store.NewVideos(pool, nil), pg.NewOutbox(pool)
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			id := deletedVideo(t, videos, marker)
			purgeAt := random.IntN(6)
			var published []string
			purged := false
			for pass := 0; ; pass++ {
				if pass > 50 {
					t.Fatalf("after 50 passes not all is published, but %q", published)
				}
				// Ends the pauses of retries. Parked aggregates stay parked.
				execute(t, pool, "UPDATE video_catalog.outbox_blocked SET next_retry_at = now() WHERE next_retry_at IS NOT NULL")
				c := claim(t, events)
				if c.Token == 0 && purged {
					break
				}
				if pass == purgeAt { // between the claim and its settlement
					change(t, videos, id, domain.PurgeVideo(5, stamp(t)))
					purged = true
				}
				if c.Token == 0 {
					continue
				}
				refuse := pass <= purgeAt && random.IntN(3) > 0
				s := pgtest.Settlement(c, func(e outbox.Claimed) bool {
					if !refuse && !e.Blocked {
						published = append(published, e.Type)
					}
					return refuse
				})
				for i := range s.Refused { // a publisher parks an aggregate only after a retry
					if s.Refused[i].Attempts > 1 && random.IntN(2) == 0 {
						s.Refused[i].RetryIn = 0 // park it
					}
				}
				settle(t, events, s)
			}
			if i := slices.Index(published, "VideoPurged"); i < 0 || i != len(published)-1 {
				t.Errorf("published = %q, want VideoPurged once and last", published)
			}
			for _, table := range []string{"outbox_pending", "outbox_deferred", "outbox_blocked"} {
				wantCount(t, pool, 0, "rows in "+table, "SELECT count(*) FROM video_catalog."+table)
			}
		})
	}
}

// If an eraser dies after any of its statements, the next eraser does the rest. A video
// that is purged meanwhile waits for the next round, and is erased too.
func TestEraserCanDieAnywhere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	videos := store.NewVideos(pool, nil)
	kept := deletedVideo(t, videos, "Ozu")
	for steps := range 14 { // the first round has 12 steps
		id := deletedVideo(t, videos, marker)
		change(t, videos, id, domain.PurgeVideo(5, stamp(t)))
		dies := store.NewEraser(pool)
		for range steps {
			_, err := dies.Erase(t.Context(), 1)
			must(t, err)
		}
		late := deletedVideo(t, videos, marker)
		change(t, videos, late, domain.PurgeVideo(5, stamp(t)))
		if steps%2 == 0 { // two erasers at a time, one of them ahead
			erase(t, dies, 3)
		}
		erase(t, store.NewEraser(pool), 4)
		if got := tablesWith(t, pool, marker); len(got) > 0 {
			t.Errorf("after a death behind %d steps %s is in %q, want nowhere", steps, marker, got)
		}
	}
	wantCount(t, pool, 5, "events of another video", "SELECT count(*) FROM video_catalog.outbox WHERE aggregate_id = $1", kept.String())
	wantCount(t, pool, 1, "erasures, and requests of the other video", "SELECT (SELECT count(*) FROM video_catalog.erasures) + (SELECT count(*) FROM video_catalog.requests)")
}

// A round reads each event and each request about twice, whatever the statistics and however many videos are purged, and
// reads no table as a whole.
func TestEraserReadsEachRowOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	videos := store.NewVideos(pool, nil)
	const rows = 20_000
	execute(t, pool, fmt.Sprintf(`
		INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT (left(video_catalog.uuid7_floor(now())::text, 24) || lpad(to_hex(n), 12, '0'))::uuid, 'video', gen_random_uuid(), 'VideoUpdated', 1, 1, '', now()
		FROM generate_series(1, %d) n`, rows))
	execute(t, pool, fmt.Sprintf(`
		INSERT INTO video_catalog.requests (aggregate_type, request_id, aggregate_id, fingerprint, create_time)
		SELECT 'video', gen_random_uuid(), gen_random_uuid(), '', now() - n * interval '1 ms' FROM generate_series(1, %d) n`, rows))
	const purged = 100
	for range purged {
		change(t, videos, deletedVideo(t, videos, marker), domain.PurgeVideo(5, stamp(t)))
	}
	read := func() (whole, entries int) {
		t.Helper()
		execute(t, pool, "SELECT pg_stat_force_next_flush()")
		const of = ` WHERE relname = 'requests' OR relname ~ '^outbox_p2'`
		return count(t, pool, "SELECT sum(seq_scan) FROM pg_stat_user_tables"+of), count(t, pool, "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"+of)
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			execute(t, pool, "ANALYZE video_catalog.outbox, video_catalog.requests, video_catalog.erasures, video_catalog.videos")
			for range purged {
				change(t, videos, deletedVideo(t, videos, marker), domain.PurgeVideo(5, stamp(t)))
			}
		}
		wholeBefore, entriesBefore := read()
		erase(t, store.NewEraser(pool), 1000)
		whole, entries := read()
		if whole -= wholeBefore; whole != 0 {
			t.Errorf("analyzed=%t: %d tables were read as a whole, want none", analyzed, whole)
		}
		// The bound allows for the limit of each batch, its rows, and the pages at the ends of a range.
		if entries -= entriesBefore; entries > 3*(2*rows+7*purged) {
			t.Errorf("analyzed=%t: %d entries of indexes were read for %d rows", analyzed, entries, 2*rows+7*purged)
		}
		t.Logf("analyzed=%t: %d entries of indexes for %d rows", analyzed, entries, 2*rows+7*purged)
	}
	if got := tablesWith(t, pool, marker); len(got) > 0 {
		t.Errorf("%s is in %q, want nowhere", marker, got)
	}
}

// The database role of the service erases only events of purged videos, although it can queue any video.
func TestEraserNeedsAPurge(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	user := userPool(t, pool, videoRole)
	videos := store.NewVideos(user, nil)
	id := deletedVideo(t, videos, "Ozu")
	execute(t, user, "INSERT INTO video_catalog.erasures (aggregate_type, aggregate_id) VALUES ('video', '"+id.String()+"')")
	erase(t, store.NewEraser(user), 2)
	wantCount(t, pool, 5, "events", "SELECT count(*) FROM video_catalog.outbox")
	for _, role := range []string{catalogRole, supportRole} {
		other := userPool(t, pool, role)
		for _, sql := range []string{"SELECT video_catalog.outbox_erase('{1}', '00000000-0000-0000-0000-000000000000', 1)", "DELETE FROM video_catalog.erasures"} {
			if _, err := other.Exec(t.Context(), sql); err == nil {
				t.Errorf("%s as %s succeeded, want permission denied", sql, role)
			}
		}
	}
}

// Old tombstones of purged videos are deleted on both sides, a few at a time. The tombstone of a
// video stays if it was only deleted, was purged lately, or still has events to erase. In
// the end both sides have the same videos.
func TestTombstonesArePruned(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 3)
	commands, queries := userPool(t, pool, videoRole), userPool(t, pool, catalogRole)
	videos, catalog := store.NewVideos(commands, nil), store.NewCatalog(queries)
	ids := make([]uuid.UUID, 6) // the first is only deleted, the last is purged lately
	for i := range ids {
		ids[i] = deletedVideo(t, videos, marker)
		if i > 0 {
			change(t, videos, ids[i], domain.PurgeVideo(5, stamp(t)))
		}
		execute(t, pool, `INSERT INTO video_catalog_read.video_projection
			SELECT id, title, description, release_year, duration_ms, language_code, tags, false, true, version, NULL, publish_time, update_time, '', pg_current_xact_id(), now()
			FROM video_catalog.videos WHERE id = '`+ids[i].String()+"'")
	}
	const days = 24 * time.Hour
	eraser := store.NewEraser(commands)
	prune := func(what string, prune func(context.Context, time.Duration, int) (int64, error), olderThan time.Duration, want int64) {
		t.Helper()
		if got, err := prune(t.Context(), olderThan, 3); got != want || err != nil {
			t.Errorf("PruneTombstones() of the %s = %d, %v, want %d", what, got, err, want)
		}
	}
	execute(t, pool, "UPDATE video_catalog.videos SET purge_time = now() WHERE purge_time IS NOT NULL")
	prune("videos", eraser.PruneTombstones, 0, 0) // the function has a minimum age of its own
	prune("catalog", catalog.PruneTombstones, 0, 0)
	execute(t, pool, `UPDATE video_catalog.videos SET purge_time = now() - interval '95 days' WHERE purge_time IS NOT NULL AND id <> '`+ids[5].String()+`';
		UPDATE video_catalog.videos SET delete_time = now() - interval '95 days';
		UPDATE video_catalog.erasures SET create_time = now() - interval '95 days';
		UPDATE video_catalog_read.video_projection SET updated_at = now() - interval '95 days' WHERE video_id <> '`+ids[5].String()+"'")
	prune("videos whose events are not erased", eraser.PruneTombstones, 94*days, 0)
	erase(t, eraser, 100)
	prune("videos", eraser.PruneTombstones, 96*days, 0)
	prune("videos", eraser.PruneTombstones, 94*days, 3)
	prune("catalog", catalog.PruneTombstones, 94*days, 3)
	prune("videos", eraser.PruneTombstones, 94*days, 1)
	prune("catalog", catalog.PruneTombstones, 94*days, 1)
	prune("videos", eraser.PruneTombstones, 94*days, 0)
	prune("catalog", catalog.PruneTombstones, 94*days, 0)
	want := []string{ids[0].String(), ids[5].String()}
	slices.Sort(want)
	for _, sql := range []string{"SELECT id::text FROM video_catalog.videos ORDER BY 1", "SELECT video_id::text FROM video_catalog_read.video_projection ORDER BY 1"} {
		if got := column(t, pool, sql); !slices.Equal(got, want) {
			t.Errorf("%s = %q, want the deleted one and the one purged lately, %q", sql, got, want)
		}
	}
	if _, err := videos.ChangeVideo(t.Context(), ids[1], domain.PurgeVideo(domain.AnyVersion, stamp(t))); kindOf(err) != problem.NotFound {
		t.Errorf("ChangeVideo() without a tombstone = %v, want NotFound", err)
	}
}

// A purge empties the entry, and deletes the messages of the video from the quarantine of
// every consumer. No earlier event brings content back.
func TestPurgeErasesTheQuerySide(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	user := userPool(t, pool, catalogRole)
	catalog, inbox := store.NewCatalog(user), pg.NewInbox(user)
	events := life(t, marker, 4)
	last := func() domain.Video { return events[len(events)-1].Video }
	events = append(events, after(t, last(), domain.DeleteVideo(false, 4, stamp(t))))
	events = append(events, after(t, last(), domain.PurgeVideo(5, stamp(t))))
	project(t, catalog, "catalog", events[:5]...)
	kept := envelope.Quarantined{MessageID: "kept", OrderingKey: newID(t).String()}
	for i, consumer := range []string{"catalog", "catalog", "another"} {
		m := envelope.Quarantined{MessageID: fmt.Sprint(i), OrderingKey: last().ID.String(), Payload: []byte(marker), Reason: marker}
		check(t, "Quarantine()", inbox.Quarantine(t.Context(), consumer, m))
	}
	check(t, "Quarantine()", inbox.Quarantine(t.Context(), "catalog", kept))
	kept = envelope.Quarantined{MessageID: "its purge", OrderingKey: last().ID.String(), Attributes: map[string]string{envelope.AttrVersion: fmt.Sprint(last().Version)}}
	check(t, "Quarantine()", inbox.Quarantine(t.Context(), "another", kept))
	if got := tablesWith(t, pool, marker); len(got) != 2 {
		t.Fatalf("before the purge %s is in %q, want two tables", marker, got)
	}

	// A transaction that fails has erased nothing.
	execute(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken on purpose'; END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON video_catalog_read.quarantine FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if outcomes, err := catalog.Project(t.Context(), "catalog", events[5:]); err == nil {
		t.Errorf("Project() = %v, want an error", outcomes)
	}
	if got := tablesWith(t, pool, marker); len(got) != 2 {
		t.Errorf("after a failure %s is in %q, want two tables", marker, got)
	}
	execute(t, pool, "DROP FUNCTION refuse CASCADE")

	if got, want := project(t, catalog, "catalog", events[5], events[5]), []envelope.Outcome{envelope.Applied, envelope.Duplicate}; !slices.Equal(got, want) {
		t.Errorf("outcomes = %q, want %q", got, want)
	}
	erased := func(when string) {
		t.Helper()
		checkEntry(t, catalog, events[5])
		if got := tablesWith(t, pool, marker); len(got) > 0 {
			t.Errorf("%s: %s is in %q, want nowhere", when, marker, got)
		}
	}
	erased("after the purge")
	wantCount(t, pool, 2, "quarantined messages, of another video and of the purge", "SELECT count(*) FROM video_catalog_read.quarantine")
	project(t, catalog, "catalog", events...)
	erased("after all events again")
	for _, e := range events {
		project(t, catalog, "replay", e)
		erased("after a replay of " + string(e.Type) + " under a new name")
	}
}
