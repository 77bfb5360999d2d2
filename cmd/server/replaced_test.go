package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/deep"
)

// projected returns the entry of a video once the catalog has its version.
func (p *process) projected(t *testing.T, v *videov1.Video) (*catalogv1.CatalogEntry, error) {
	t.Helper()
	for {
		entry, err := p.catalog.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{
			Name: "catalogEntries/" + strings.TrimPrefix(v.GetName(), "videos/"), MinVersion: v.GetVersion(),
		})
		if status.Code(err) != codes.DeadlineExceeded { // the server waits for a while only
			return entry, err
		}
	}
}

// After a failover that lost what the owner had committed last, and a projection
// that lacks what it had projected, everybody is told, and one command makes all
// right: the catalog is what the owner has, and watches hear of it.
func TestRepairAfterAFailover(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	s := newStack(t)
	p := s.start(t)
	var ids []string
	for i := range 6 {
		v, err := p.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: fmt.Sprint("video ", i)}})
		if err == nil {
			v, err = p.videos.PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: v.GetName()})
		}
		if err == nil {
			_, err = p.projected(t, v)
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, strings.TrimPrefix(v.GetName(), "videos/"))
	}
	watch, err := p.catalog.WatchCatalogEntries(t.Context(), &catalogv1.WatchCatalogEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range ids {
		if got := nextChange(t, watch); got.GetUpdated() == nil {
			t.Fatalf("change = %v, want an entry", got)
		}
	}
	if out, err := s.command(t, "projection", "repair", "--all", "--dry-run"); err != nil || !strings.HasPrefix(out, "video: compared 6 rows: missing 0, behind 0, ahead 0, different 0, extra 0\n") {
		t.Errorf("repair --dry-run before = %q, %v", out, err)
	}

	// What a standby does not have when it is promoted too early.
	for _, sql := range []string{
		"DELETE FROM video_catalog.videos WHERE id::text = '" + ids[0] + "'",                                                              // a ghost
		"UPDATE video_catalog.videos SET version = 1, state = 'draft', publish_time = NULL WHERE id::text = '" + ids[1] + "'",             // the catalog is ahead
		"UPDATE video_catalog.videos SET title = 'other' WHERE id::text = '" + ids[2] + "'",                                               // other content, same version
		"DELETE FROM video_catalog_read.video_projection WHERE video_id::text = '" + ids[3] + "'",                                         // missing
		"UPDATE video_catalog_read.video_projection SET version = 1, visible = false WHERE video_id::text = '" + ids[4] + "'",             // behind
		"UPDATE video_catalog_read.video_projection SET version = 9223372036854775807 WHERE video_id::text = '" + ids[5] + "'",            // pinned by a stranger
		"UPDATE video_catalog_read.known_database SET identity = 'before'", "UPDATE video_catalog.known_database SET identity = 'before'", // both sides moved
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	replaced := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.Count(strings.Join(p.log, "\n"), "database: replaced")
	}
	eventually(t, 30*time.Second, "both sides are in the log", func() bool { return replaced() == 2 })
	if out, err := s.command(t, "projection", "repair", "--all", "--dry-run"); err != nil || !strings.HasPrefix(out, "video: compared 5 rows: missing 1, behind 1, ahead 2, different 1, extra 1\n") {
		t.Errorf("repair --dry-run = %q, %v", out, err)
	}
	if got := s.count(t, "SELECT count(*) FROM video_catalog_read.known_database WHERE identity = 'before'"); got != 1 {
		t.Error("repair --dry-run has made the database known")
	}
	if out, err := s.command(t, "projection", "repair", "--all", "--reason", "failover"); err != nil || !strings.Contains(out, "\nrepaired 6 of 6 entries") {
		t.Errorf("repair = %q, %v", out, err)
	}
	if out, err := s.command(t, "projection", "repair", "--all", "--dry-run"); err != nil || !strings.HasPrefix(out, "video: compared 5 rows: missing 0, behind 0, ahead 0, different 0, extra 0\n") {
		t.Errorf("repair --dry-run after = %q, %v", out, err)
	}
	for _, schema := range []string{"video_catalog", "video_catalog_read"} {
		if got := s.count(t, "SELECT count(*) FROM "+schema+".known_database WHERE identity = "+schema+".database_identity()"); got != 1 {
			t.Errorf("the database of %s is not known", schema)
		}
	}
	for i, want := range []codes.Code{codes.NotFound, codes.NotFound, codes.OK, codes.OK, codes.OK, codes.OK} {
		if _, err := p.catalog.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: "catalogEntries/" + ids[i]}); status.Code(err) != want {
			t.Errorf("GetCatalogEntry() of video %d = %v, want %s", i, err, want)
		}
	}
	removed := map[string]bool{}
	for len(removed) < 2 {
		if name := nextChange(t, watch).GetRemoved(); name != "" {
			removed[strings.TrimPrefix(name, "catalogEntries/")] = true
		}
	}
	if !removed[ids[0]] || !removed[ids[1]] {
		t.Errorf("removed = %v, want the video that the owner lost, and its draft", removed)
	}
	// The owner's next events count again.
	for _, id := range []string{ids[1], ids[5]} {
		v, err := p.videos.UpdateVideo(t.Context(), &videov1.UpdateVideoRequest{Video: &videov1.Video{Name: "videos/" + id, Title: "again"}})
		if err == nil {
			v, err = p.videos.PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: v.GetName()})
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.projected(t, v)
		if err != nil || got.GetTitle() != "again" {
			t.Errorf("GetCatalogEntry() after another event = %v, %v", got, err)
		}
	}
}

// A watch that was broken by a failover begins again, and says so.
func TestWatchAfterAFailover(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	s := newStack(t)
	p := s.start(t)
	v, err := p.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
	if err == nil {
		_, err = p.videos.PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: v.GetName()})
	}
	if err != nil {
		t.Fatal(err)
	}
	watch, err := p.catalog.WatchCatalogEntries(t.Context(), &catalogv1.WatchCatalogEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	nextChange(t, watch)
	if _, err := s.pool.Exec(t.Context(), "CREATE OR REPLACE FUNCTION video_catalog_read.database_identity() RETURNS text LANGUAGE sql AS $$ SELECT 'elsewhere' $$"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		got := nextChange(t, watch)
		if got.GetRestarted() != want || (got.GetUpdated() != nil) == want {
			t.Errorf("change = %v, want restarted, and then the entry again", got)
		}
	}
}
