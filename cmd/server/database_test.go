package main

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/pg/pgtest"
)

// Calls that wait for a lock hold all connections that calls may have. The
// publisher, the projector and the probes have connections of their own.
func TestCallsLeaveTheLoopsTheirConnections(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	busy, other := s.start(t, limits+`={"Transport": {"CallTimeout": 300000000000}}`), s.start(t, "ROLES=api")
	create := func(title string) *videov1.Video {
		t.Helper()
		video, err := other.videos().CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: title}})
		must(t, err)
		return video
	}
	locked := create("locked")
	tx, err := s.pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // only after the test has failed
	pgtest.Execute(t, tx, "SELECT FROM video_catalog.videos WHERE id::text = $1 FOR UPDATE", strings.TrimPrefix(locked.GetName(), "videos/"))

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // calls may wait for half of it
	var calls sync.WaitGroup
	defer func() { cancel(); calls.Wait() }()
	for range 50 {
		calls.Go(func() {
			_, err := busy.videos().UpdateVideo(ctx, &videov1.UpdateVideoRequest{
				Video: &videov1.Video{Name: locked.GetName(), Title: "changed"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"title"}},
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, 10*time.Second, "a call that needs a connection is refused in half of its time", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := busy.videos().GetVideo(ctx, &videov1.GetVideoRequest{Name: locked.GetName()})
		return status.Code(err) == codes.Unavailable
	})

	video, err := other.videos().PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: create("new").GetName()})
	must(t, err)
	// Only the busy process publishes and projects the event.
	if _, err := other.catalog().GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{
		Name: "catalogEntries/" + strings.TrimPrefix(video.GetName(), "videos/"), MinVersion: video.GetVersion(),
	}); err != nil {
		t.Errorf("beside calls that wait, an event did not get to the catalog: %v", err)
	}
	eventually(t, 30*time.Second, "the process is ready", func() bool {
		code, _ := get(t, "http://"+busy.addr+"/health/ready")
		return code == http.StatusOK
	})

	must(t, tx.Commit(t.Context()))
	calls.Wait()
}
