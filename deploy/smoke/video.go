package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
)

func init() { more = append(more, smoke) }

// smoke creates a video, publishes it, waits until the catalog has it, and deletes it. So it tests the
// whole path: both databases, the publisher, the topic, the subscription and the projector. It also tries to delete the
// video when a step fails.
func smoke(ctx context.Context, conn *grpc.ClientConn) (err error) {
	videos, catalog := videov1.NewVideoServiceClient(conn), catalogv1.NewCatalogServiceClient(conn)
	video, err := videos.CreateVideo(ctx, &videov1.CreateVideoRequest{
		Video: &videov1.Video{Title: "Smoke test", Tags: []string{"smoke-test"}}, RequestId: uuid.NewString(),
	})
	if err != nil {
		return fmt.Errorf("create video: %w", err)
	}
	name := video.GetName()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if _, e := videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: name}); e != nil {
			err = errors.Join(err, fmt.Errorf("delete %s: %w", name, e))
		}
	}()
	video, err = videos.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: name, Etag: video.GetEtag()})
	if err != nil {
		return fmt.Errorf("publish %s: %w", name, err)
	}
	entry := strings.Replace(name, "videos/", "catalogEntries/", 1)
	for {
		got, err := catalog.GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{Name: entry, MinVersion: video.GetVersion()})
		if err == nil && got.GetTitle() == video.GetTitle() {
			return nil
		}
		if err == nil {
			return fmt.Errorf("get %s: title is %q, want %q", entry, got.GetTitle(), video.GetTitle())
		}
		// The server also waits for the version, but not as long as this client.
		if code := status.Code(err); ctx.Err() != nil || code != codes.NotFound && code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.FailedPrecondition {
			return fmt.Errorf("get %s in version %d: %w; are publisher, topic, subscription and projector at work?", entry, video.GetVersion(), err)
		}
		_ = gax.Sleep(ctx, time.Second)
	}
}
