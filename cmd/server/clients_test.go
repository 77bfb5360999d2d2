package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localpg"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/names"
)

// newServer starts a PostgreSQL server with an empty database, named like the service, and returns it with the URL of the database.
func newServer(t *testing.T, cfg localpg.Config) (*localpg.Server, string) {
	t.Helper()
	server, err := localpg.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(filepath.Join(server.Programs(), "pg_basebackup")); err != nil {
		t.Skipf("the PostgreSQL here has no programs but its server: %v", err)
	}
	if cfg.StandbyOf == nil {
		ask[int](t, server.DSN("postgres"), "CREATE DATABASE "+names.Service)
	}
	return server, server.DSN(names.Service)
}

// ask runs a statement on a connection of its own, and returns the only column of its rows.
func ask[T any](t *testing.T, target, sql string, args ...any) []T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), target)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	defer conn.Close(t.Context())
	rows, _ := conn.Query(t.Context(), sql, args...)
	got, err := pgx.CollectRows(rows, pgx.RowTo[T]) // has the error of the query, too
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

// settled waits until every event is published, projected and acknowledged.
func (s *stack) settled(t *testing.T, owner string) {
	t.Helper()
	eventually(t, time.Minute, "all events are published and acknowledged", func() bool {
		if ask[int](t, owner, "SELECT count(*)::int FROM video_catalog.outbox_pending")[0] > 0 {
			return false
		}
		for _, m := range s.pubsub.Published() {
			if m.Acks == 0 {
				return false
			}
		}
		return true
	})
}

// create makes a video, publishes it, and returns its name.
func (p *process) create(t *testing.T, title string) string {
	t.Helper()
	video, err := p.videos().CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: title}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.videos().PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: video.GetName()}); err != nil {
		t.Fatal(err)
	}
	return video.GetName()
}

// rename changes the title of a video.
func (p *process) rename(t *testing.T, name, title string) {
	t.Helper()
	if _, err := p.videos().UpdateVideo(t.Context(), &videov1.UpdateVideoRequest{Video: &videov1.Video{Name: name, Title: title}}); err != nil {
		t.Fatal(err)
	}
}

// delete deletes a video.
func (p *process) delete(t *testing.T, name string) {
	t.Helper()
	if _, err := p.videos().DeleteVideo(t.Context(), &videov1.DeleteVideoRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
}

// entries are what somebody has of the catalog: title and version by id.
type entries map[string]string

// published is what the owner says should be in the catalog.
func (p *process) published(t *testing.T) entries {
	t.Helper()
	response, err := p.videos().ListVideos(t.Context(), &videov1.ListVideosRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	all := entries{}
	for _, v := range response.GetVideos() {
		if v.GetState() == videov1.Video_STATE_PUBLISHED {
			all[strings.TrimPrefix(v.GetName(), "videos/")] = fmt.Sprintf("%s v%d", v.GetTitle(), v.GetVersion())
		}
	}
	return all
}

// listed is what the catalog has.
func (p *process) listed(t *testing.T) entries {
	t.Helper()
	response, err := p.catalog().ListCatalogEntries(t.Context(), &catalogv1.ListCatalogEntriesRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	all := entries{}
	for _, e := range response.GetCatalogEntries() {
		all.update(e)
	}
	return all
}

func (e entries) update(entry *catalogv1.CatalogEntry) {
	e[strings.TrimPrefix(entry.GetName(), "catalogEntries/")] = fmt.Sprintf("%s v%d", entry.GetTitle(), entry.GetVersion())
}

// checkRepaired compares the owner with the catalog.
func (p *process) checkRepaired(t *testing.T) {
	t.Helper()
	want := p.published(t)
	if diff := cmp.Diff(want, p.listed(t)); diff != "" {
		t.Errorf("catalog (-owner +catalog):\n%s", diff)
	}
}

// logs reports whether a line of the server's log has all of the words.
func (p *process) logs(words ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.log {
		missing := 0
		for _, word := range words {
			if !strings.Contains(line, word) {
				missing++
			}
		}
		if missing == 0 {
			return true
		}
	}
	return false
}

// personURL is the database as a new user of the role support_ro sees it, who may only look.
func (s *stack) personURL(t *testing.T) string {
	t.Helper()
	address, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	name := "person_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	user := pgx.Identifier{name}.Sanitize()
	if _, err := s.pool.Exec(t.Context(), "CREATE USER "+user+" IN ROLE support_ro"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := s.pool.Exec(context.WithoutCancel(t.Context()), "DROP USER "+user); err != nil {
			t.Error(err)
		}
	})
	address.User = url.User(name)
	return address.String()
}

// output is what a process has written so far. It can be read while the process runs.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (p *process) videos() videov1.VideoServiceClient { return videov1.NewVideoServiceClient(p.conn) }

func (p *process) catalog() catalogv1.CatalogServiceClient {
	return catalogv1.NewCatalogServiceClient(p.conn)
}
