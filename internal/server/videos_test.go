package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/transport"
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

// The event has the given ids and the time of the given clock, in UTC and whole milliseconds.
func TestVideoServiceStampsEvents(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	ids := []uuid.UUID{uuid.MustParse("0191d000-0000-7000-8000-000000000001"), uuid.MustParse("0191d000-0000-7000-8000-000000000002")}
	now := time.Date(2026, 11, 21, 10, 0, 0, 123_456_789, time.FixedZone("CET", 3600))
	service := &videoService{store: store, origin: origin{now: func() time.Time { return now }, newID: func() uuid.UUID {
		id := ids[0]
		ids = ids[1:]
		return id
	}}}
	got, err := service.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()})
	must(t, err)
	want := film()
	want.Name = "videos/0191d000-0000-7000-8000-000000000001"
	want.State = videov1.Video_STATE_DRAFT
	want.Version = 1
	want.Etag = `"1"`
	want.CreateTime = timestamppb.New(now.Truncate(time.Millisecond))
	want.UpdateTime = want.GetCreateTime()
	same(t, "video", want, got, protocmp.Transform())
	events := store.allEvents()
	if len(events) != 1 || events[0].ID.String() != "0191d000-0000-7000-8000-000000000002" || events[0].OccurredAt.Location() != time.UTC {
		t.Errorf("events = %+v, want one with the second id and a time in UTC", events)
	}
}

// The RPCs of both services, except purges and watches, take a video through its life.
func TestAPITakesAVideoThroughItsLife(t *testing.T) {
	t.Parallel()
	_, c := serve(t, transport.Config{})
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
		same(t, step, want, got, protocmp.Transform(), serverMade)
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
	must(t, err)
	wantEntry := &catalogv1.CatalogEntry{
		Name: "catalogEntries/" + id, Video: v.GetName(), Title: "重慶森林", ReleaseYear: 1994, Duration: film().GetDuration(),
		LanguageCode: "zh-HK", Version: 3, PublishTime: published.GetPublishTime(), UpdateTime: published.GetUpdateTime(),
	}
	same(t, "entry", wantEntry, entry, protocmp.Transform())
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
	_, c := serve(t, transport.Config{})
	ctx := t.Context()
	v := mustCreate(t, c, film())
	deleted, err := c.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName()})
	must(t, err)
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

// A caller's mistake is reported by code and by field, has one reason, and is no warning in the log.
func TestAPIRefusesMistakes(t *testing.T) {
	t.Parallel()
	const unknown = "videos/0191d000-0000-7000-8000-000000000000"
	long := strings.Repeat("ä", 201)
	title := func(text string) *videov1.CreateVideoRequest {
		return &videov1.CreateVideoRequest{Video: &videov1.Video{Title: text}}
	}
	update := func(v *videov1.Video, paths ...string) *videov1.UpdateVideoRequest {
		return &videov1.UpdateVideoRequest{Video: v, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}}
	}
	publish := func(etag string) *videov1.PublishVideoRequest { return &videov1.PublishVideoRequest{Etag: etag} }
	twoMistakes := title(long)
	twoMistakes.Video.Tags = []string{"a", ""}
	r, c := serve(t, transport.Config{})
	for name, tt := range map[string]struct {
		request proto.Message // without a name: about a video that exists
		deleted bool          // whether that video is deleted
		code    codes.Code
		field   string
		text    string // part of the message
	}{
		"no video":                  {&videov1.CreateVideoRequest{}, false, codes.InvalidArgument, "video", ""},
		"no title":                  {title(" "), false, codes.InvalidArgument, "video.title", "empty"},
		"long title":                {title(long), false, codes.InvalidArgument, "video.title", "200"},
		"two mistakes":              {twoMistakes, false, codes.InvalidArgument, "video.title video.tags[1]", ""},
		"negative length":           {&videov1.CreateVideoRequest{Video: &videov1.Video{Title: "x", Duration: durationpb.New(-1)}}, false, codes.InvalidArgument, "video.duration", ""},
		"odd request_id":            {&videov1.CreateVideoRequest{Video: film(), RequestId: "1"}, false, codes.InvalidArgument, "request_id", ""},
		"zero request_id":           {&videov1.CreateVideoRequest{Video: film(), RequestId: uuid.Nil.String()}, false, codes.InvalidArgument, "request_id", ""},
		"unknown video":             {&videov1.PublishVideoRequest{Name: unknown}, false, codes.NotFound, "", unknown[len("videos/"):]},
		"odd name":                  {&videov1.PublishVideoRequest{Name: "videos/1"}, false, codes.InvalidArgument, "name", ""},
		"stale etag":                {publish(`"2"`), false, codes.Aborted, "", "changed meanwhile"},
		"odd etag":                  {publish(`1`), false, codes.Aborted, "", "changed meanwhile"},
		"long etag":                 {publish(strings.Repeat("1", 65)), false, codes.InvalidArgument, "etag", ""},
		"update: etag":              {update(&videov1.Video{Title: "x", Etag: `"7"`}, "title"), false, codes.Aborted, "", "changed meanwhile"},
		"update: no title":          {update(&videov1.Video{}, "title"), false, codes.InvalidArgument, "video.title", "empty"},
		"update: name":              {update(&videov1.Video{Name: "videos/x", Title: "x"}, "title"), false, codes.InvalidArgument, "video.name", ""},
		"mask: unknown":             {update(&videov1.Video{Title: "x"}, "title", "titel"), false, codes.InvalidArgument, "update_mask", `"titel"`},
		"mask: nested":              {update(&videov1.Video{Title: "x"}, "duration.seconds"), false, codes.InvalidArgument, "update_mask", `"duration.seconds"`},
		"mask: * and more":          {update(&videov1.Video{Title: "x"}, "*", "title"), false, codes.InvalidArgument, "update_mask", `"*"`},
		"mask: of output":           {update(&videov1.Video{Title: "x"}, "create_time.seconds"), false, codes.InvalidArgument, "update_mask", `"create_time.seconds"`},
		"rules: in mask":            {update(&videov1.Video{Title: "x", ReleaseYear: 5}, "title", "release_year"), false, codes.InvalidArgument, "video.release_year", ""},
		"rules: in *":               {update(&videov1.Video{Title: "x", ReleaseYear: 5}, "*"), false, codes.InvalidArgument, "video.release_year", ""},
		"rules: etag":               {update(&videov1.Video{Title: "x", Etag: strings.Repeat("1", 65)}, "title"), false, codes.InvalidArgument, "video.etag", ""},
		"invisible title":           {update(&videov1.Video{Title: "\u200b"}, "title"), false, codes.InvalidArgument, "video.title", "visible"},
		"no language":               {update(&videov1.Video{LanguageCode: "qq"}, "language_code"), false, codes.InvalidArgument, "video.language_code", "BCP 47"},
		"odd language":              {update(&videov1.Video{LanguageCode: "e_n"}, "language_code"), false, codes.InvalidArgument, "video.language_code", ""},
		"page_size":                 {&videov1.ListVideosRequest{PageSize: -1}, false, codes.InvalidArgument, "page_size", ""},
		"page_token":                {&videov1.ListVideosRequest{PageToken: "x"}, false, codes.InvalidArgument, "page_token", ""},
		"filter":                    {&videov1.ListVideosRequest{Filter: "title = \"x\""}, false, codes.InvalidArgument, "filter", "state = STATE_DRAFT"},
		"order_by":                  {&videov1.ListVideosRequest{OrderBy: "title"}, false, codes.InvalidArgument, "order_by", "create_time desc"},
		"entries filter":            {&catalogv1.ListCatalogEntriesRequest{Filter: "state = STATE_DRAFT"}, false, codes.InvalidArgument, "filter", `tags:"drama"`},
		"entries order_by":          {&catalogv1.ListCatalogEntriesRequest{OrderBy: "title desc"}, false, codes.InvalidArgument, "order_by", "publish_time desc"},
		"entries token":             {&catalogv1.ListCatalogEntriesRequest{PageToken: "x"}, false, codes.InvalidArgument, "page_token", ""},
		"search nothing":            {&catalogv1.SearchCatalogEntriesRequest{}, false, codes.InvalidArgument, "query", ""},
		"search token":              {&catalogv1.SearchCatalogEntriesRequest{Query: "a", PageToken: "x"}, false, codes.InvalidArgument, "page_token", ""},
		"negative version":          {&catalogv1.GetCatalogEntryRequest{Name: "catalogEntries/" + unknown[len("videos/"):], MinVersion: -1}, false, codes.InvalidArgument, "min_version", ""},
		"not deleted":               {&videov1.UndeleteVideoRequest{}, false, codes.AlreadyExists, "", "not deleted"},
		"publish deleted":           {&videov1.PublishVideoRequest{}, true, codes.FailedPrecondition, "", "undelete it first"},
		"purge what is not deleted": {&videov1.PurgeVideoRequest{}, false, codes.FailedPrecondition, "", "delete it first"},
		"purge an unknown one":      {&videov1.PurgeVideoRequest{Name: unknown}, false, codes.NotFound, "", unknown[len("videos/"):]},
		"delete twice":              {&videov1.DeleteVideoRequest{}, true, codes.NotFound, "", "deleted already"},
	} {
		v := mustCreate(t, c, film())
		if tt.deleted {
			_, err := c.videos.DeleteVideo(t.Context(), &videov1.DeleteVideoRequest{Name: v.GetName()})
			must(t, err)
		}
		err := call(t, r, named(tt.request, v.GetName()))
		if got := status.Convert(err); got.Code() != tt.code || !strings.Contains(got.Message(), tt.text) || len(reasonsOf(got)) != 1 {
			t.Errorf("%s: %v with the reasons %q, want %v with %q and one reason", name, err, reasonsOf(got), tt.code, tt.text)
		}
		if got := strings.Join(violations(err), " "); got != tt.field {
			t.Errorf("%s: violations of %q, want %q", name, got, tt.field)
		}
	}
	if log := r.log.String(); log != "" {
		t.Errorf("log = %s, want nothing: these are the callers' mistakes", log)
	}
}

// named fills in the name of a resource, where a request has none.
func named(request proto.Message, name string) proto.Message {
	message := request.ProtoReflect()
	if update, ok := request.(*videov1.UpdateVideoRequest); ok {
		message = update.GetVideo().ProtoReflect()
	}
	if field := message.Descriptor().Fields().ByName("name"); field != nil && message.Get(field).String() == "" {
		message.Set(field, protoreflect.ValueOfString(name))
	}
	return request
}

// call calls the method that has this type of request.
func call(t *testing.T, r *running, request proto.Message) error {
	t.Helper()
	message := request.ProtoReflect().Descriptor()
	method := strings.TrimSuffix(string(message.Name()), "Request")
	service := message.ParentFile().Services().Get(0).FullName()
	return r.dial(t).Invoke(t.Context(), fmt.Sprintf("/%s/%s", service, method), request, new(emptypb.Empty))
}

// A repeated request creates nothing and returns the first video in its current
// state. The same id for another video is refused.
func TestCreateVideoIsIdempotentByRequestID(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{})
	request := &videov1.CreateVideoRequest{Video: film(), RequestId: uuid.NewString()}
	first, err := c.videos.CreateVideo(t.Context(), request)
	must(t, err)
	published := mustPublish(t, c, first)
	request.Video.Name, request.Video.Version = first.GetName(), 3 // output fields are ignored
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
