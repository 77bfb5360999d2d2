package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/pg/pgtest"
)

// SIGTERM under gRPC, REST and stream load: every request that was accepted gets its
// response, every event is published once, and the process ends in time.
func TestStopUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t)
	var created atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		for _, create := range []func() error{p.createOverGRPC(t), p.createOverREST(t)} {
			clients.Go(func() {
				err := create()
				for ; err == nil; err = create() {
					created.Add(1)
				}
				if !notAccepted(err) {
					t.Error(err)
				}
			})
		}
	}
	watch, err := p.catalog().WatchCatalogEntries(t.Context(), &catalogv1.WatchCatalogEntriesRequest{})
	must(t, err)
	clients.Go(func() {
		_, err := watch.Recv()
		for ; err == nil; _, err = watch.Recv() {
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("watch: %v, want Unavailable", err)
		}
	})
	eventually(t, 20*time.Second, "there is load", func() bool { return created.Load() > 200 })

	took, err := p.stop(t)
	if err != nil {
		t.Errorf("the server ended with %v, want no error", err)
	}
	if took > 8*time.Second {
		t.Errorf("the stop took %s, want at most 8s", took)
	}
	clients.Wait()
	if got, want := s.count(t, "SELECT count(*) FROM video_catalog.videos"), int(created.Load()); got != want {
		t.Errorf("videos = %d, want %d, as many as were answered", got, want)
	}
	s.start(t) // publishes what the first had no time for, on a busy machine
	eventually(t, 20*time.Second, "nothing is pending", func() bool { return s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending") == 0 })
	s.checkPublishedOnce(t)
}

// checkPublishedOnce fails unless every event of the outbox was published, once.
func (s *stack) checkPublishedOnce(t *testing.T) {
	t.Helper()
	times := map[string]int{}
	for _, m := range s.pubsub.Published() {
		times[m.Attributes["event_id"]]++
	}
	for id, n := range times {
		if n != 1 {
			t.Errorf("event %s was published %d times, want once", id, n)
		}
	}
	if got, want := len(times), s.count(t, "SELECT count(*) FROM video_catalog.outbox"); got != want {
		t.Errorf("published events = %d, want %d", got, want)
	}
}

// notAccepted reports whether an error may mean that the server did not take the request: over
// HTTP/1.1 an idle connection may be closed while a request is sent on it. If the server did
// take the request, the test counts a row too many. Over gRPC a new connection failed, before or in its handshake.
func notAccepted(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" ||
		errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		status.Code(err) == codes.Unavailable && (strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "error reading server preface"))
}

func (p *process) createOverGRPC(t *testing.T) func() error {
	t.Helper()
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	videos := videov1.NewVideoServiceClient(conn)
	return func() error {
		_, err := videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		return err
	}
}

func (p *process) createOverREST(t *testing.T) func() error {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	return func() error {
		response, err := client.Post("http://"+p.addr+"/v1/videos", "application/json", strings.NewReader(`{"title":"Ran"}`))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, body)
		}
		return err
	}
}

// Each role runs in a process of its own.
func TestRolesRunApart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := newStack(t)
	api := s.start(t, "ROLES=api")
	v, err := api.videos().CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
	must(t, err)
	if v, err = api.videos().PublishVideo(ctx, &videov1.PublishVideoRequest{Name: v.GetName()}); err != nil {
		t.Fatal(err)
	}
	pgtest.WantCount(t, s.pool, 2, "pending events, which nobody publishes", "SELECT count(*) FROM video_catalog.outbox_pending")
	publisher := s.start(t, "ROLES=publisher")
	s.start(t, "ROLES=projector")
	if _, err := publisher.videos().GetVideo(ctx, &videov1.GetVideoRequest{Name: v.GetName()}); status.Code(err) != codes.Unimplemented {
		t.Errorf("GetVideo() of a publisher = %v, want Unimplemented", err)
	}
	name := strings.Replace(v.GetName(), "videos/", "catalogEntries/", 1)
	if _, err := api.catalog().GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{Name: name, MinVersion: v.GetVersion()}); err != nil {
		t.Errorf("GetCatalogEntry() = %v", err)
	}
}

// A database that lacks a migration is refused, in one sentence.
func TestSchemaThatIsTooOldIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	pgtest.Execute(t, s.pool, "DELETE FROM video_catalog_migrations WHERE version_id = (SELECT max(version_id) FROM video_catalog_migrations)")
	_, err := s.command(t, "serve")
	if err == nil || !strings.Contains(err.Error(), "schema is too old") {
		t.Errorf("serve = %v, want a word about the schema", err)
	}
}
