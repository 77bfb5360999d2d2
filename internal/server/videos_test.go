package server

import (
	stdcmp "cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/port"
)

func film() *videov1.Video {
	return &videov1.Video{
		Title: "Chungking Express", Description: "Two policemen.", ReleaseYear: 1994,
		Duration: durationpb.New(98 * time.Minute), LanguageCode: "zh-HK", Tags: []string{"drama", "romance"},
	}
}

func mustCreate(t testing.TB, c client, v *videov1.Video) *videov1.Video {
	t.Helper()
	created, err := c.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: v})
	if err != nil {
		t.Fatalf("CreateVideo(%v) = %v", v, err)
	}
	return created
}

func mustPublish(t testing.TB, c client, v *videov1.Video) *videov1.Video {
	t.Helper()
	published, err := c.videos.PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: v.GetName()})
	if err != nil {
		t.Fatalf("PublishVideo(%v) = %v", v.GetName(), err)
	}
	return published
}

// The clock and the ids come from outside and end up, unchanged, in the event.
func TestVideoServiceStampsEvents(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	ids := []uuid.UUID{uuid.MustParse("0191d000-0000-7000-8000-000000000001"), uuid.MustParse("0191d000-0000-7000-8000-000000000002")}
	now := time.Date(2026, 11, 21, 10, 0, 0, 123_456_789, time.FixedZone("CET", 3600))
	service := &videoService{store: store, origin: origin{now: func() time.Time { return now }, newID: func() (uuid.UUID, error) {
		id := ids[0]
		ids = ids[1:]
		return id, nil
	}}}
	got, err := service.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()})
	if err != nil {
		t.Fatal(err)
	}
	want := film()
	want.Name = "videos/0191d000-0000-7000-8000-000000000001"
	want.State = videov1.Video_STATE_DRAFT
	want.Version = 1
	want.Etag = `"1"`
	want.CreateTime = timestamppb.New(now.Truncate(time.Millisecond))
	want.UpdateTime = want.GetCreateTime()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("video (-want +got):\n%s", diff)
	}
	events := store.allEvents()
	if len(events) != 1 || events[0].ID.String() != "0191d000-0000-7000-8000-000000000002" || events[0].OccurredAt.Location() != time.UTC {
		t.Errorf("events = %+v, want one with the second id and a time in UTC", events)
	}
}

// Every RPC of both services does what it says.
func TestAPITakesAVideoThroughItsLife(t *testing.T) {
	t.Parallel()
	_, c := serve(t, port.Config{})
	ctx := t.Context()
	v := mustCreate(t, c, film())
	want := film()
	want.State, want.Version, want.Etag = videov1.Video_STATE_DRAFT, 1, `"1"`
	serverMade := protocmp.IgnoreFields(&videov1.Video{}, "name", "create_time", "update_time", "publish_time", "delete_time")
	check := func(step string, got *videov1.Video, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform(), serverMade); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
		want.Version++
		want.Etag = fmt.Sprintf("%q", fmt.Sprint(want.GetVersion()))
	}
	check("create", v, nil)
	id := strings.TrimPrefix(v.GetName(), "videos/")
	if parsed, err := uuid.Parse(id); err != nil || parsed.Version() != 7 {
		t.Errorf("name = %q, want videos/ and a UUIDv7", v.GetName())
	}

	want.Title, want.Tags, want.Description = "重慶森林", nil, ""
	got, err := c.videos.UpdateVideo(ctx, &videov1.UpdateVideoRequest{
		Video:      &videov1.Video{Name: v.GetName(), Title: "重慶森林", Etag: v.GetEtag(), ReleaseYear: 1},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"title", "tags", "description"}},
	})
	check("update", got, err)

	want.State = videov1.Video_STATE_PUBLISHED
	got, err = c.videos.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: v.GetName(), Etag: got.GetEtag()})
	check("publish", got, err)
	published := got

	entry, err := c.catalog.GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{Name: "catalogEntries/" + id, MinVersion: got.GetVersion()})
	if err != nil {
		t.Fatal(err)
	}
	wantEntry := &catalogv1.CatalogEntry{
		Name: "catalogEntries/" + id, Video: v.GetName(), Title: "重慶森林", ReleaseYear: 1994, Duration: film().GetDuration(),
		LanguageCode: "zh-HK", Version: 3, PublishTime: published.GetPublishTime(), UpdateTime: published.GetUpdateTime(),
	}
	if diff := cmp.Diff(wantEntry, entry, protocmp.Transform()); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	entries, err := c.catalog.ListCatalogEntries(ctx, &catalogv1.ListCatalogEntriesRequest{Filter: `language_code = "zh-HK" AND release_year = 1994`, OrderBy: "title"})
	if diff := cmp.Diff(&catalogv1.ListCatalogEntriesResponse{CatalogEntries: []*catalogv1.CatalogEntry{wantEntry}}, entries, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("entries: %v (-want +got):\n%s", err, diff)
	}
	matches, err := c.catalog.SearchCatalogEntries(ctx, &catalogv1.SearchCatalogEntriesRequest{Query: "森林"})
	if diff := cmp.Diff(&catalogv1.SearchCatalogEntriesResponse{CatalogEntries: []*catalogv1.CatalogEntry{wantEntry}}, matches, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("matches: %v (-want +got):\n%s", err, diff)
	}

	want.State = videov1.Video_STATE_DRAFT
	got, err = c.videos.UnpublishVideo(ctx, &videov1.UnpublishVideoRequest{Name: v.GetName()})
	check("unpublish", got, err)
	_, err = c.catalog.GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{Name: "catalogEntries/" + id, MinVersion: got.GetVersion()})
	if status.Code(err) != codes.NotFound {
		t.Errorf("entry of an unpublished video = %v, want NotFound", err)
	}

	got, err = c.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName(), Etag: got.GetEtag()})
	check("delete", got, err)
	if got.GetDeleteTime() == nil {
		t.Error("a deleted video has no delete_time")
	}
	for showDeleted, wantVideos := range map[bool]int{false: 0, true: 1} {
		list, err := c.videos.ListVideos(ctx, &videov1.ListVideosRequest{ShowDeleted: showDeleted, Filter: "state = STATE_DRAFT", OrderBy: "create_time"})
		if err != nil || len(list.GetVideos()) != wantVideos {
			t.Errorf("list with show_deleted=%v = %v, %v, want %d videos", showDeleted, list, err, wantVideos)
		}
	}
	again, err := c.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName(), AllowMissing: true})
	if diff := cmp.Diff(got, again, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("delete with allow_missing: %v (-want +got):\n%s", err, diff)
	}
	got, err = c.videos.UndeleteVideo(ctx, &videov1.UndeleteVideoRequest{Name: v.GetName()})
	check("undelete", got, err)
	read, err := c.videos.GetVideo(ctx, &videov1.GetVideoRequest{Name: v.GetName()})
	if diff := cmp.Diff(got, read, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("get: %v (-want +got):\n%s", err, diff)
	}
}

// A purged video is a tombstone, which only a list with show_purged shows.
func TestPurgeOverAPI(t *testing.T) {
	t.Parallel()
	_, c := serve(t, port.Config{})
	ctx := t.Context()
	v := mustCreate(t, c, film())
	deleted, err := c.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.videos.PurgeVideo(ctx, &videov1.PurgeVideoRequest{Name: v.GetName(), Etag: deleted.GetEtag()})
	if err != nil {
		t.Fatalf("PurgeVideo() = %v", err)
	}
	want := &videov1.Video{
		Name: v.GetName(), State: videov1.Video_STATE_DRAFT, Version: 3, Etag: `"3"`,
		CreateTime: v.GetCreateTime(), UpdateTime: got.GetUpdateTime(), DeleteTime: deleted.GetDeleteTime(), PurgeTime: got.GetUpdateTime(),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || got.GetPurgeTime() == nil {
		t.Errorf("tombstone (-want +got):\n%s", diff)
	}
	again, err := c.videos.PurgeVideo(ctx, &videov1.PurgeVideoRequest{Name: v.GetName(), Etag: deleted.GetEtag()})
	if diff := cmp.Diff(want, again, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("PurgeVideo() again: %v (-want +got):\n%s", err, diff)
	}
	var errs [6]error
	_, errs[0] = c.videos.GetVideo(ctx, &videov1.GetVideoRequest{Name: v.GetName()})
	_, errs[1] = c.videos.UndeleteVideo(ctx, &videov1.UndeleteVideoRequest{Name: v.GetName()})
	_, errs[2] = c.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName()})
	_, errs[3] = c.videos.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: v.GetName()})
	_, errs[4] = c.videos.UnpublishVideo(ctx, &videov1.UnpublishVideoRequest{Name: v.GetName()})
	_, errs[5] = c.videos.UpdateVideo(ctx, &videov1.UpdateVideoRequest{Video: &videov1.Video{Name: v.GetName(), Title: "x"}})
	for i, err := range errs {
		if status.Code(err) != codes.NotFound {
			t.Errorf("call %d about a purged video = %v, want NotFound", i, err)
		}
	}
	for _, request := range []*videov1.ListVideosRequest{{}, {ShowDeleted: true}, {ShowPurged: true}} {
		list, err := c.videos.ListVideos(ctx, request)
		if shown := len(list.GetVideos()) > 0; err != nil || shown != request.GetShowPurged() {
			t.Errorf("ListVideos(%v) = %v, %v", request, list, err)
		}
	}
}

// What a caller does wrong is told by code and by field.
func TestAPIRefusesMistakes(t *testing.T) {
	t.Parallel()
	const unknown = "videos/0191d000-0000-7000-8000-000000000000"
	long := strings.Repeat("ä", 201)
	type call func(context.Context, client, *videov1.Video) error
	create := func(change func(*videov1.CreateVideoRequest)) call {
		return func(ctx context.Context, c client, _ *videov1.Video) error {
			request := &videov1.CreateVideoRequest{Video: film()}
			change(request)
			_, err := c.videos.CreateVideo(ctx, request)
			return err
		}
	}
	update := func(v *videov1.Video, paths ...string) call {
		return func(ctx context.Context, c client, existing *videov1.Video) error {
			v := proto.CloneOf(v)
			v.Name = stdcmp.Or(v.GetName(), existing.GetName())
			_, err := c.videos.UpdateVideo(ctx, &videov1.UpdateVideoRequest{Video: v, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}})
			return err
		}
	}
	list := func(request *videov1.ListVideosRequest) call {
		return func(ctx context.Context, c client, _ *videov1.Video) error {
			_, err := c.videos.ListVideos(ctx, request)
			return err
		}
	}
	entries := func(request *catalogv1.ListCatalogEntriesRequest) call {
		return func(ctx context.Context, c client, _ *videov1.Video) error {
			_, err := c.catalog.ListCatalogEntries(ctx, request)
			return err
		}
	}
	search := func(request *catalogv1.SearchCatalogEntriesRequest) call {
		return func(ctx context.Context, c client, _ *videov1.Video) error {
			_, err := c.catalog.SearchCatalogEntries(ctx, request)
			return err
		}
	}
	publish := func(name, etag string) call {
		return func(ctx context.Context, c client, existing *videov1.Video) error {
			_, err := c.videos.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: stdcmp.Or(name, existing.GetName()), Etag: etag})
			return err
		}
	}
	tests := map[string]struct {
		call   call
		code   codes.Code
		fields []string
		text   string // part of the message
	}{
		"no title":         {create(func(r *videov1.CreateVideoRequest) { r.Video.Title = " " }), codes.InvalidArgument, []string{"video.title"}, "empty"},
		"long title":       {create(func(r *videov1.CreateVideoRequest) { r.Video.Title = long }), codes.InvalidArgument, []string{"video.title"}, "200"},
		"two mistakes":     {create(func(r *videov1.CreateVideoRequest) { r.Video.Title, r.Video.Tags = long, []string{"a", ""} }), codes.InvalidArgument, []string{"video.title", "video.tags[1]"}, ""},
		"NUL in title":     {create(func(r *videov1.CreateVideoRequest) { r.Video.Title = "a\x00b" }), codes.InvalidArgument, []string{"video.title"}, "NUL"},
		"NUL in a tag":     {create(func(r *videov1.CreateVideoRequest) { r.Video.Tags = []string{"a", "b\x00"} }), codes.InvalidArgument, []string{"video.tags[1]"}, "NUL"},
		"negative length":  {create(func(r *videov1.CreateVideoRequest) { r.Video.Duration = durationpb.New(-1) }), codes.InvalidArgument, []string{"video.duration"}, ""},
		"odd request_id":   {create(func(r *videov1.CreateVideoRequest) { r.RequestId = "1" }), codes.InvalidArgument, []string{"request_id"}, ""},
		"zero request_id":  {create(func(r *videov1.CreateVideoRequest) { r.RequestId = uuid.Nil.String() }), codes.InvalidArgument, []string{"request_id"}, ""},
		"unknown video":    {publish(unknown, ""), codes.NotFound, nil, unknown[len("videos/"):]},
		"odd name":         {publish("videos/1", ""), codes.InvalidArgument, []string{"name"}, ""},
		"stale etag":       {publish("", `"2"`), codes.Aborted, nil, "changed meanwhile"},
		"zero etag":        {publish("", `"0"`), codes.Aborted, nil, "changed meanwhile"},
		"odd etag":         {publish("", `1`), codes.Aborted, nil, "changed meanwhile"},
		"weak etag":        {publish("", `W/"1"`), codes.Aborted, nil, "changed meanwhile"},
		"padded etag":      {publish("", `"01"`), codes.Aborted, nil, "changed meanwhile"},
		"long etag":        {publish("", strings.Repeat("1", 65)), codes.InvalidArgument, []string{"etag"}, ""},
		"update: etag":     {update(&videov1.Video{Title: "x", Etag: `"7"`}, "title"), codes.Aborted, nil, "changed meanwhile"},
		"update: no title": {update(&videov1.Video{}, "title"), codes.InvalidArgument, []string{"video.title"}, "empty"},
		"update: name":     {update(&videov1.Video{Name: "videos/x", Title: "x"}, "title"), codes.InvalidArgument, []string{"video.name"}, ""},
		"mask: unknown":    {update(&videov1.Video{Title: "x"}, "title", "titel"), codes.InvalidArgument, []string{"update_mask"}, `"titel"`},
		"mask: nested":     {update(&videov1.Video{Title: "x"}, "duration.seconds"), codes.InvalidArgument, []string{"update_mask"}, `"duration.seconds"`},
		"mask: * and more": {update(&videov1.Video{Title: "x"}, "*", "title"), codes.InvalidArgument, []string{"update_mask"}, `"*"`},
		"mask: of output":  {update(&videov1.Video{Title: "x"}, "create_time.seconds"), codes.InvalidArgument, []string{"update_mask"}, `"create_time.seconds"`},
		"rules: in mask":   {update(&videov1.Video{Title: "x", ReleaseYear: 5}, "title", "release_year"), codes.InvalidArgument, []string{"video.release_year"}, ""},
		"rules: in *":      {update(&videov1.Video{Title: "x", ReleaseYear: 5}, "*"), codes.InvalidArgument, []string{"video.release_year"}, ""},
		"rules: etag":      {update(&videov1.Video{Title: "x", Etag: strings.Repeat("1", 65)}, "title"), codes.InvalidArgument, []string{"video.etag"}, ""},
		"invisible title":  {update(&videov1.Video{Title: "\u200b"}, "title"), codes.InvalidArgument, []string{"video.title"}, "visible"},
		"no language":      {update(&videov1.Video{LanguageCode: "qq"}, "language_code"), codes.InvalidArgument, []string{"video.language_code"}, "BCP 47"},
		"odd language":     {update(&videov1.Video{LanguageCode: "e_n"}, "language_code"), codes.InvalidArgument, []string{"video.language_code"}, ""},
		"page_size":        {list(&videov1.ListVideosRequest{PageSize: -1}), codes.InvalidArgument, []string{"page_size"}, ""},
		"page_token":       {list(&videov1.ListVideosRequest{PageToken: "x"}), codes.InvalidArgument, []string{"page_token"}, ""},
		"filter":           {list(&videov1.ListVideosRequest{Filter: "title = \"x\""}), codes.InvalidArgument, []string{"filter"}, "state = STATE_DRAFT"},
		"order_by":         {list(&videov1.ListVideosRequest{OrderBy: "title"}), codes.InvalidArgument, []string{"order_by"}, "create_time desc"},
		"entries filter":   {entries(&catalogv1.ListCatalogEntriesRequest{Filter: "state = STATE_DRAFT"}), codes.InvalidArgument, []string{"filter"}, `tags:"drama"`},
		"entries order_by": {entries(&catalogv1.ListCatalogEntriesRequest{OrderBy: "title desc"}), codes.InvalidArgument, []string{"order_by"}, "publish_time desc"},
		"entries token":    {entries(&catalogv1.ListCatalogEntriesRequest{PageToken: "x"}), codes.InvalidArgument, []string{"page_token"}, ""},
		"search nothing":   {search(&catalogv1.SearchCatalogEntriesRequest{}), codes.InvalidArgument, []string{"query"}, ""},
		"search NUL":       {search(&catalogv1.SearchCatalogEntriesRequest{Query: "\x00"}), codes.InvalidArgument, []string{"query"}, "NUL"},
		"search token":     {search(&catalogv1.SearchCatalogEntriesRequest{Query: "a", PageToken: "x"}), codes.InvalidArgument, []string{"page_token"}, ""},
		"negative version": {func(ctx context.Context, c client, v *videov1.Video) error {
			_, err := c.catalog.GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{Name: "catalogEntries/" + v.GetName()[len("videos/"):], MinVersion: -1})
			return err
		}, codes.InvalidArgument, []string{"min_version"}, ""},
		"not deleted": {func(ctx context.Context, c client, v *videov1.Video) error {
			_, err := c.videos.UndeleteVideo(ctx, &videov1.UndeleteVideoRequest{Name: v.GetName()})
			return err
		}, codes.AlreadyExists, nil, "not deleted"},
		"publish deleted": {func(ctx context.Context, c client, v *videov1.Video) error {
			if _, err := c.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName()}); err != nil {
				return err
			}
			_, err := c.videos.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: v.GetName()})
			return err
		}, codes.FailedPrecondition, nil, "undelete it first"},
		"purge what is not deleted": {func(ctx context.Context, c client, v *videov1.Video) error {
			_, err := c.videos.PurgeVideo(ctx, &videov1.PurgeVideoRequest{Name: v.GetName()})
			return err
		}, codes.FailedPrecondition, nil, "delete it first"},
		"purge an unknown one": {func(ctx context.Context, c client, _ *videov1.Video) error {
			_, err := c.videos.PurgeVideo(ctx, &videov1.PurgeVideoRequest{Name: unknown})
			return err
		}, codes.NotFound, nil, unknown[len("videos/"):]},
		"purge an odd name": {func(ctx context.Context, c client, _ *videov1.Video) error {
			_, err := c.videos.PurgeVideo(ctx, &videov1.PurgeVideoRequest{Name: "videos/1"})
			return err
		}, codes.InvalidArgument, []string{"name"}, ""},
		"delete twice": {func(ctx context.Context, c client, v *videov1.Video) error {
			if _, err := c.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName()}); err != nil {
				return err
			}
			_, err := c.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName()})
			return err
		}, codes.NotFound, nil, "deleted already"},
	}
	r, c := serve(t, port.Config{})
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.call(t.Context(), c, mustCreate(t, c, film()))
			if got := status.Code(err); got != tt.code {
				t.Errorf("code = %v (%v), want %v", got, err, tt.code)
			}
			if diff := cmp.Diff(tt.fields, violations(err), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("fields of the violations (-want +got):\n%s", diff)
			}
			if got := reasonsOf(status.Convert(err)); len(got) != 1 {
				t.Errorf("reasons = %q, want one", got)
			}
			if got := status.Convert(err).Message(); !strings.Contains(got, tt.text) {
				t.Errorf("message = %q, want it to contain %q", got, tt.text)
			}
		})
	}
	if log := r.log.String(); log != "" {
		t.Errorf("log = %s, want nothing: these are the callers' mistakes", log)
	}
}

// A repeated request creates nothing and returns the first video, as it is by
// now; the same id for something else is refused.
func TestCreateVideoIsIdempotentByRequestID(t *testing.T) {
	t.Parallel()
	r, c := serve(t, port.Config{})
	request := &videov1.CreateVideoRequest{Video: film(), RequestId: uuid.NewString()}
	first, err := c.videos.CreateVideo(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	published := mustPublish(t, c, first)
	request.Video.Name, request.Video.Version = first.GetName(), 3 // what is ignored makes no difference
	again, err := c.videos.CreateVideo(t.Context(), request)
	if diff := cmp.Diff(published, again, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("repeated: %v (-want +got):\n%s", err, diff)
	}
	for name, change := range map[string]func(v *videov1.Video){
		"title":         func(v *videov1.Video) { v.Title = "x" },
		"description":   func(v *videov1.Video) { v.Description = "x" },
		"release_year":  func(v *videov1.Video) { v.ReleaseYear = 1995 },
		"duration":      func(v *videov1.Video) { v.Duration = nil },
		"language_code": func(v *videov1.Video) { v.LanguageCode = "" },
		"tags":          func(v *videov1.Video) { slices.Reverse(v.Tags) },
	} {
		other := proto.CloneOf(request)
		change(other.Video)
		_, err := c.videos.CreateVideo(t.Context(), other)
		if status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), "the request id was used") {
			t.Errorf("same id, another %s: %v, want AlreadyExists about the request id", name, err)
		}
	}
	if got := len(r.store.allEvents()); got != 2 {
		t.Errorf("%d events, want 2: created and published", got)
	}
}
