package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	gax "github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store"
)

// rebuild writes the catalog anew from what VideoService at a source says: the
// full history of a new catalog, or the repair of a damaged one. It asks the
// owner and does not read the owner's tables.
//
// The projector may run meanwhile, and for a new catalog must: the subscription
// has to exist before the first page is read, or what happens in between is
// missed. The version of each row makes the overlap harmless. A crash leaves
// the rows written so far; run it again.
func rebuild(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	source, err := parseRebuild(args)
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	catalog := store.NewCatalog(database.catalog.own)
	conn, err := source.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", source.address, err)
	}
	defer conn.Close()
	client := videov1.NewVideoServiceClient(conn)

	written := 0
	request := &videov1.ListVideosRequest{PageSize: 1000, OrderBy: "create_time", ShowDeleted: true}
	for {
		page, err := listVideos(ctx, client, request, written > 0)
		if err != nil {
			return fmt.Errorf("list videos after %d: %w%s", written, err, source.refused(err))
		}
		entries := make([]domain.Entry, len(page.GetVideos()))
		for i, video := range page.GetVideos() {
			if entries[i], err = entryOf(video); err != nil {
				return err
			}
		}
		if err := catalog.RebuildEntries(ctx, entries); err != nil {
			return err
		}
		written += len(entries)
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			_, err := fmt.Fprintf(stdout, "rebuilt %d entries\n", written)
			return err
		}
	}
}

// retryTimeout is how long the same page is asked for.
const retryTimeout = time.Minute

// listVideos asks again while this caller calls too often and, if the service
// has answered before, while it is away. The retries of gRPC would not do: they
// end with the header of an answer, which the server sends before a status.
func listVideos(ctx context.Context, client videov1.VideoServiceClient, request *videov1.ListVideosRequest, again bool) (page *videov1.ListVideosResponse, err error) {
	busy := []codes.Code{codes.ResourceExhausted}
	if again {
		busy = append(busy, codes.Unavailable)
	}
	retry := func() gax.Retryer {
		return gax.OnCodes(busy, gax.Backoff{Initial: time.Second, Max: 5 * time.Second, Multiplier: 2})
	}
	err = gax.Invoke(ctx, func(ctx context.Context, _ gax.CallSettings) error {
		page, err = client.ListVideos(ctx, request)
		return err
	}, gax.WithRetry(retry), gax.WithTimeout(retryTimeout))
	return page, err
}

func entryOf(v *videov1.Video) (domain.Entry, error) {
	id, err := uuid.Parse(strings.TrimPrefix(v.GetName(), "videos/"))
	if err != nil {
		return domain.Entry{}, fmt.Errorf("video name %q: %w", v.GetName(), err)
	}
	video := domain.Video{
		ID: id,
		Details: domain.Details{
			Title: v.GetTitle(), Description: v.GetDescription(), ReleaseYear: v.GetReleaseYear(),
			Duration: v.GetDuration().AsDuration(), LanguageCode: v.GetLanguageCode(), Tags: v.GetTags(),
		},
		State: domain.Draft, Version: v.GetVersion(), UpdateTime: v.GetUpdateTime().AsTime(),
	}
	if v.GetState() == videov1.Video_STATE_PUBLISHED {
		video.State = domain.Published
		video.PublishTime = v.GetPublishTime().AsTime()
	}
	if v.GetDeleteTime() != nil {
		video.DeleteTime = v.GetDeleteTime().AsTime()
	}
	return domain.EntryOf(video), nil
}
