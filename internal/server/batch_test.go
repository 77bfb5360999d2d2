package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/transport"
)

// items returns a batch of films, each with a request id.
func items(n int) *videov1.BatchCreateVideosRequest {
	batch := new(videov1.BatchCreateVideosRequest)
	for range n {
		batch.Requests = append(batch.Requests, &videov1.CreateVideoRequest{Video: film(), RequestId: uuid.NewString()})
	}
	return batch
}

// A batch creates videos by the rules of a single call, in the order of its items. Repeated, also as single calls, it
// creates nothing. A batch of their names, in another order, returns them.
func TestBatchesOfVideos(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{})
	batch := items(1000)
	batch.Requests[7].Video.LanguageCode = "ZH-hk" // the rules of a single call include the canonical form
	first, err := c.videos.BatchCreateVideos(t.Context(), batch)
	if err != nil || len(first.GetVideos()) != 1000 || first.GetVideos()[7].GetLanguageCode() != "zh-HK" {
		t.Fatalf("BatchCreateVideos() = %d videos, %v", len(first.GetVideos()), err)
	}
	again, err := c.videos.BatchCreateVideos(t.Context(), batch)
	if diff := cmp.Diff(first, again, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("repeated: %v (-want +got):\n%s", err, diff)
	}
	single, err := c.videos.CreateVideo(t.Context(), batch.GetRequests()[3])
	if diff := cmp.Diff(first.GetVideos()[3], single, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("repeated as a single call: %v (-want +got):\n%s", err, diff)
	}
	if got := len(r.store.allEvents()); got != 1000 {
		t.Errorf("%d events, want one of each video", got)
	}
	names := new(videov1.BatchGetVideosRequest)
	for _, v := range first.GetVideos() {
		names.Names = append(names.Names, v.GetName())
	}
	slices.Reverse(names.Names)
	slices.Reverse(first.Videos)
	found, err := c.videos.BatchGetVideos(t.Context(), names)
	if diff := cmp.Diff(first.GetVideos(), found.GetVideos(), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("BatchGetVideos() = %v (-want +got):\n%s", err, diff)
	}
}

// A mistake in a batch is about its item, and then nothing is created.
func TestBatchesNameTheItem(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{})
	change := func(f func(*videov1.CreateVideoRequest)) *videov1.BatchCreateVideosRequest {
		batch := items(3)
		f(batch.Requests[2])
		return batch
	}
	same := items(3)
	same.Requests[2].RequestId = strings.ToUpper(same.Requests[0].RequestId)
	v := mustCreate(t, c, film())
	get := func(names ...string) *videov1.BatchGetVideosRequest {
		return &videov1.BatchGetVideosRequest{Names: names}
	}
	const unknown = "videos/0191d000-0000-7000-8000-000000000000"
	for name, tt := range map[string]struct {
		request interface{ String() string }
		code    codes.Code
		want    string // in the message
	}{
		"no items":             {items(0), codes.InvalidArgument, "requests: "},
		"too many items":       {items(1001), codes.InvalidArgument, "requests: "},
		"one request id twice": {same, codes.InvalidArgument, "requests[2].request_id: is the same as that of item 0"},
		"another parent":       {change(func(r *videov1.CreateVideoRequest) { r.Video.Name = "films" + unknown[6:] }), codes.InvalidArgument, "requests[2].video.name: "},
		"a limit":              {change(func(r *videov1.CreateVideoRequest) { r.Video.ReleaseYear = 5 }), codes.InvalidArgument, "requests[2].video.release_year: "},
		"a rule of the domain": {change(func(r *videov1.CreateVideoRequest) { r.Video.Title = " " }), codes.InvalidArgument, "requests[2].video.title: "},
		"no names":             {get(), codes.InvalidArgument, "names: "},
		"too many names":       {get(slices.Repeat([]string{v.GetName()}, 1001)...), codes.InvalidArgument, "names: "},
		"empty names":          {get(make([]string, 100_000)...), codes.InvalidArgument, "names"},
		"one name twice":       {get(v.GetName(), unknown, v.GetName()), codes.InvalidArgument, "names[2]: is the same as that of item 0"},
		"a name of others":     {get(v.GetName(), "films"+unknown[6:]), codes.InvalidArgument, "names[1]: "},
		"a video that is not":  {get(v.GetName(), unknown), codes.NotFound, "names[1]: "},
	} {
		var err error
		switch request := tt.request.(type) {
		case *videov1.BatchCreateVideosRequest:
			_, err = c.videos.BatchCreateVideos(t.Context(), request)
		case *videov1.BatchGetVideosRequest:
			_, err = c.videos.BatchGetVideos(t.Context(), request)
		}
		if status.Code(err) != tt.code || !strings.Contains(fmt.Sprint(err), tt.want) || len(fmt.Sprint(err)) > 1<<10 {
			t.Errorf("%s: %.999v, want %s with %q", name, err, tt.code, tt.want)
		}
	}
	if got := len(r.store.allEvents()); got != 1 {
		t.Errorf("%d events, want none of a batch", got)
	}
}
