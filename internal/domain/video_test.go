package domain_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

var (
	videoID = uuid.MustParse("01890a5d-ac96-7000-8000-000000000001")
	eventID = uuid.MustParse("01890a5d-ac96-7000-8000-000000000002")

	createTime = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	updateTime = createTime.Add(time.Hour)
	now        = createTime.Add(2 * time.Hour)
	// The clock of a server is finer than what an event carries.
	stamp = domain.Stamp{EventID: eventID, Time: now.Add(999_999 * time.Nanosecond), Caller: "ann@example.com"}
)

// draft is a video at version 3.
func draft() domain.Video {
	return domain.Video{
		ID: videoID,
		VideoDetails: domain.VideoDetails{
			Title: "Ran", Description: "A king and his sons.", ReleaseYear: 1985, Duration: 162 * time.Minute,
			LanguageCode: "ja", Tags: []string{"drama", "war"},
		},
		State: domain.VideoStateDraft, Version: 3, CreateTime: createTime, UpdateTime: updateTime,
		CreateUser: "eve@example.com", UpdateUser: "eve@example.com",
	}
}

func published() domain.Video {
	v := draft()
	v.State, v.PublishTime = domain.VideoStatePublished, updateTime
	return v
}

func deleted(v domain.Video) domain.Video {
	v.DeleteTime = updateTime
	return v
}

// purged is what is left of a deleted video, at version 3.
func purged() domain.Video {
	return domain.Video{
		ID: videoID, State: domain.VideoStateDraft, Version: 3,
		CreateTime: createTime, UpdateTime: updateTime, DeleteTime: createTime.Add(time.Minute), PurgeTime: updateTime,
	}
}

// with returns v after some changes.
func with(v domain.Video, change func(*domain.Video)) domain.Video {
	change(&v)
	return v
}

// otherDetails returns details that differ from draft in every field.
func otherDetails() domain.VideoDetails {
	return domain.VideoDetails{
		Title: "Kagemusha", Description: "A thief and a lord.", ReleaseYear: 1980, Duration: 180 * time.Minute,
		LanguageCode: "en", Tags: []string{"history"},
	}
}

// A new video is a draft at version 1, and its first event says so.
func TestCreateMakesADraft(t *testing.T) {
	details := otherDetails()
	details.Duration += 999 * time.Microsecond // finer than an event carries
	got, err := domain.CreateVideo(videoID, details, stamp)
	if err != nil {
		t.Fatalf("Create() = %v", err)
	}
	want := &domain.VideoEvent{
		ID: eventID, Type: domain.VideoCreated, OccurredAt: now, Caller: stamp.Caller,
		Video: domain.Video{ID: videoID, VideoDetails: otherDetails(), State: domain.VideoStateDraft, Version: 1, CreateTime: now, UpdateTime: now,
			CreateUser: stamp.Caller, UpdateUser: stamp.Caller},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	if got.Video.Deleted() {
		t.Error("Deleted() = true, want false")
	}
}

// A command that applies makes one event: the next version, with the whole
// state after it, and times in whole milliseconds.
func TestDecisionMakesTheNextVersion(t *testing.T) {
	// next is v after a change, at the next version.
	next := func(v domain.Video, change func(*domain.Video)) domain.Video {
		v.Version, v.UpdateTime, v.UpdateUser = 4, now, stamp.Caller
		return with(v, change)
	}
	nothingElse := func(*domain.Video) {}
	for _, test := range []struct {
		name    string
		video   domain.Video
		decide  domain.VideoDecision
		typ     domain.EventType
		want    domain.Video
		changed []string
	}{
		{
			"update all fields", draft(), domain.UpdateVideo(func(d *domain.VideoDetails) { *d = otherDetails() }, 3, stamp),
			domain.VideoUpdated, next(draft(), func(v *domain.Video) { v.VideoDetails = otherDetails() }),
			[]string{"title", "description", "release_year", "duration", "language_code", "tags"},
		},
		{
			"update tells the fields in the order of the API", draft(),
			domain.UpdateVideo(func(d *domain.VideoDetails) { d.Tags, d.Title = otherDetails().Tags, otherDetails().Title }, domain.AnyVersion, stamp),
			domain.VideoUpdated, next(draft(), func(v *domain.Video) { v.Title, v.Tags = "Kagemusha", []string{"history"} }),
			[]string{"title", "tags"},
		},
		{
			"update tells only the fields that differ", draft(),
			domain.UpdateVideo(func(d *domain.VideoDetails) { d.ReleaseYear = 1986 }, domain.AnyVersion, stamp),
			domain.VideoUpdated, next(draft(), func(v *domain.Video) { v.ReleaseYear = 1986 }),
			[]string{"release_year"},
		},
		{
			"update empties fields", draft(),
			domain.UpdateVideo(func(d *domain.VideoDetails) { d.Description, d.Duration, d.Tags = "", 0, nil }, domain.AnyVersion, stamp),
			domain.VideoUpdated, next(draft(), func(v *domain.Video) { v.Description, v.Duration, v.Tags = "", 0, nil }),
			[]string{"description", "duration", "tags"},
		},
		{
			"the order of the tags counts", draft(),
			domain.UpdateVideo(func(d *domain.VideoDetails) { slices.Reverse(d.Tags) }, domain.AnyVersion, stamp),
			domain.VideoUpdated, next(draft(), func(v *domain.Video) { v.Tags = []string{"war", "drama"} }),
			[]string{"tags"},
		},
		{
			"a duration is cut to milliseconds", draft(),
			domain.UpdateVideo(func(d *domain.VideoDetails) { d.Duration = time.Minute + time.Microsecond }, domain.AnyVersion, stamp),
			domain.VideoUpdated, next(draft(), func(v *domain.Video) { v.Duration = time.Minute }),
			[]string{"duration"},
		},
		{
			"update leaves a published video published", published(),
			domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = otherDetails().Title }, 3, stamp),
			domain.VideoUpdated, next(published(), func(v *domain.Video) { v.Title = "Kagemusha" }),
			[]string{"title"},
		},
		{
			"publish", draft(), domain.PublishVideo(3, stamp),
			domain.VideoPublished, next(draft(), func(v *domain.Video) { v.State, v.PublishTime = domain.VideoStatePublished, now }), nil,
		},
		{
			"unpublish forgets the publish time", published(), domain.UnpublishVideo(3, stamp),
			domain.VideoUnpublished, next(published(), func(v *domain.Video) { v.State, v.PublishTime = domain.VideoStateDraft, time.Time{} }), nil,
		},
		{
			"delete a draft", draft(), domain.DeleteVideo(false, 3, stamp),
			domain.VideoDeleted, next(draft(), func(v *domain.Video) { v.DeleteTime = now }), nil,
		},
		{
			"delete keeps the state and the publish time", published(), domain.DeleteVideo(true, domain.AnyVersion, stamp),
			domain.VideoDeleted, next(published(), func(v *domain.Video) { v.DeleteTime = now }), nil,
		},
		{
			"undelete brings back a draft", deleted(draft()), domain.UndeleteVideo(3, stamp),
			domain.VideoUndeleted, next(draft(), nothingElse), nil,
		},
		{
			"undelete brings back a published video with its publish time", deleted(published()), domain.UndeleteVideo(domain.AnyVersion, stamp),
			domain.VideoUndeleted, next(published(), nothingElse), nil,
		},
		{
			"purge leaves the id, the version and times", deleted(published()), domain.PurgeVideo(3, stamp),
			domain.VideoPurged,
			domain.Video{ID: videoID, State: domain.VideoStateDraft, Version: 4, CreateTime: createTime, UpdateTime: now, DeleteTime: updateTime, PurgeTime: now}, nil,
		},
		{
			"purge of whatever version", deleted(draft()), domain.PurgeVideo(domain.AnyVersion, stamp),
			domain.VideoPurged,
			domain.Video{ID: videoID, State: domain.VideoStateDraft, Version: 4, CreateTime: createTime, UpdateTime: now, DeleteTime: updateTime, PurgeTime: now}, nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.decide(test.video)
			if err != nil {
				t.Fatalf("decide() = %v", err)
			}
			want := &domain.VideoEvent{ID: eventID, Type: test.typ, Video: test.want, ChangedFields: test.changed, OccurredAt: now, Caller: stamp.Caller}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
		})
	}
}

// A command whose effect is there already makes no event.
func TestDecisionWithoutEffectMakesNoEvent(t *testing.T) {
	sameDetails := draft().VideoDetails
	sameDetails.Duration += time.Nanosecond // an event carries whole milliseconds
	noTags := with(draft(), func(v *domain.Video) { v.Tags = nil })
	for _, test := range []struct {
		name   string
		video  domain.Video
		decide domain.VideoDecision
	}{
		{"update to the same", draft(), domain.UpdateVideo(func(d *domain.VideoDetails) { *d = sameDetails }, 3, stamp)},
		{"update of no field", draft(), domain.UpdateVideo(func(d *domain.VideoDetails) {}, domain.AnyVersion, stamp)},
		{"no tags and none", noTags, domain.UpdateVideo(func(d *domain.VideoDetails) { d.Tags = []string{} }, domain.AnyVersion, stamp)},
		{"publish a published one", published(), domain.PublishVideo(3, stamp)},
		{"unpublish a draft", draft(), domain.UnpublishVideo(domain.AnyVersion, stamp)},
		{"delete a deleted one that may be missing", deleted(draft()), domain.DeleteVideo(true, domain.AnyVersion, stamp)},
		{"the same, whatever version is expected", deleted(published()), domain.DeleteVideo(true, 7, stamp)},
		{"delete a purged one that may be missing", purged(), domain.DeleteVideo(true, 7, stamp)},
		{"purge a purged one", purged(), domain.PurgeVideo(domain.AnyVersion, stamp)},
		{"purge a purged one again, with the version of before", purged(), domain.PurgeVideo(2, stamp)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := test.decide(test.video); got != nil || err != nil {
				t.Errorf("decide() = %v, %v, want nil, nil", got, err)
			}
		})
	}
}

// A command that must not apply is refused, with a kind of error on which the
// caller can act.
func TestDecisionRefuses(t *testing.T) {
	create := func(title string) domain.VideoDecision {
		return func(domain.Video) (*domain.VideoEvent, error) {
			return domain.CreateVideo(videoID, domain.VideoDetails{Title: title}, stamp)
		}
	}
	for _, test := range []struct {
		name   string
		video  domain.Video
		decide domain.VideoDecision
		kind   problem.Kind
		field  string
	}{
		{"create without a title", domain.Video{}, create(""), problem.Invalid, "video.title"},
		{"create with a blank title", domain.Video{}, create(" \t\n\u00a0"), problem.Invalid, "video.title"},
		{"create with a title of a zero-width space", domain.Video{}, create("\u200b"), problem.Invalid, "video.title"},
		{"create with a title of what is invisible", domain.Video{}, create("\u00ad\u034f\u115f\u17b4\u180e\u200b\u2028\u2060\u2800\u3164\ufe0f\ufeff\uffa0\U000e0001"), problem.Invalid, "video.title"},
		{"update to a blank tag", draft(), domain.UpdateVideo(func(d *domain.VideoDetails) { d.Tags = []string{"war", " \u200b"} }, domain.AnyVersion, stamp), problem.Invalid, "video.tags[1]"},
		{"update to no title", draft(), domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = "" }, domain.AnyVersion, stamp), problem.Invalid, "video.title"},
		{"update to a blank title", published(), domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = "\u3000" }, 3, stamp), problem.Invalid, "video.title"},

		{"update a deleted one", deleted(draft()), domain.UpdateVideo(func(d *domain.VideoDetails) { *d = otherDetails() }, domain.AnyVersion, stamp), problem.Precondition, ""},
		{"update a deleted one to the same", deleted(draft()), domain.UpdateVideo(func(d *domain.VideoDetails) { *d = draft().VideoDetails }, 3, stamp), problem.Precondition, ""},
		{"publish a deleted one", deleted(draft()), domain.PublishVideo(domain.AnyVersion, stamp), problem.Precondition, ""},
		{"publish a deleted one of another version", deleted(draft()), domain.PublishVideo(7, stamp), problem.Precondition, ""},
		{"unpublish a deleted one", deleted(published()), domain.UnpublishVideo(domain.AnyVersion, stamp), problem.Precondition, ""},
		{"delete a deleted one", deleted(published()), domain.DeleteVideo(false, domain.AnyVersion, stamp), problem.NotFound, ""},
		{"undelete one that is not", published(), domain.UndeleteVideo(domain.AnyVersion, stamp), problem.Exists, ""},
		{"undelete one that is not, of another version", draft(), domain.UndeleteVideo(7, stamp), problem.Exists, ""},

		{"update another version", draft(), domain.UpdateVideo(func(d *domain.VideoDetails) { *d = otherDetails() }, 2, stamp), problem.Conflict, ""},
		{"update another version to the same", draft(), domain.UpdateVideo(func(d *domain.VideoDetails) { *d = draft().VideoDetails }, 4, stamp), problem.Conflict, ""},
		{"publish another version", draft(), domain.PublishVideo(2, stamp), problem.Conflict, ""},
		{"publish a published one of another version", published(), domain.PublishVideo(4, stamp), problem.Conflict, ""},
		{"unpublish another version", published(), domain.UnpublishVideo(2, stamp), problem.Conflict, ""},
		{"delete another version", draft(), domain.DeleteVideo(false, 4, stamp), problem.Conflict, ""},
		{"delete another version that may be missing", draft(), domain.DeleteVideo(true, 4, stamp), problem.Conflict, ""},
		{"undelete another version", deleted(draft()), domain.UndeleteVideo(2, stamp), problem.Conflict, ""},
		{"purge one that is not deleted", published(), domain.PurgeVideo(domain.AnyVersion, stamp), problem.Precondition, ""},
		{"purge one that is not deleted, of another version", draft(), domain.PurgeVideo(7, stamp), problem.Precondition, ""},
		{"purge another version", deleted(draft()), domain.PurgeVideo(2, stamp), problem.Conflict, ""},
		{"update a purged one", purged(), domain.UpdateVideo(func(d *domain.VideoDetails) { *d = otherDetails() }, domain.AnyVersion, stamp), problem.NotFound, ""},
		{"publish a purged one", purged(), domain.PublishVideo(3, stamp), problem.NotFound, ""},
		{"unpublish a purged one", purged(), domain.UnpublishVideo(7, stamp), problem.NotFound, ""},
		{"delete a purged one", purged(), domain.DeleteVideo(false, 3, stamp), problem.NotFound, ""},
		{"undelete a purged one", purged(), domain.UndeleteVideo(domain.AnyVersion, stamp), problem.NotFound, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.decide(test.video)
			if got != nil {
				t.Errorf("event = %v, want none", got)
			}
			var domainErr *problem.Error
			if !errors.As(err, &domainErr) || domainErr.Kind != test.kind || domainErr.Field != test.field {
				t.Errorf("error = %#v, want kind %d, field %q", err, test.kind, test.field)
			}
		})
	}
}

// A title may be in any script, may be a single character, and may contain
// characters that are not visible by themselves.
func TestTitleNeedsOneVisibleCharacter(t *testing.T) {
	for _, title := range []string{"7", "愛", "ｱ", "ه", "-", "🎬", "❤\ufe0f", "한", "a\u200b", "\u200d क", "⠁"} {
		if _, err := domain.CreateVideo(videoID, domain.VideoDetails{Title: title, Tags: []string{title}}, stamp); err != nil {
			t.Errorf("create with the title %q: %v", title, err)
		}
	}
}

// Time never runs backwards for a video, whatever the clocks of the servers do.
func TestTimeNeverRunsBackwards(t *testing.T) {
	late := domain.Stamp{EventID: eventID, Time: updateTime.Add(-time.Hour)}
	for _, test := range []struct {
		name   string
		video  domain.Video
		decide domain.VideoDecision
		// at is the time that the command writes, besides the update time.
		at func(domain.Video) time.Time
	}{
		{"update", draft(), domain.UpdateVideo(func(d *domain.VideoDetails) { *d = otherDetails() }, domain.AnyVersion, late), nil},
		{"publish", draft(), domain.PublishVideo(domain.AnyVersion, late), func(v domain.Video) time.Time { return v.PublishTime }},
		{"unpublish", published(), domain.UnpublishVideo(domain.AnyVersion, late), nil},
		{"delete", draft(), domain.DeleteVideo(false, domain.AnyVersion, late), func(v domain.Video) time.Time { return v.DeleteTime }},
		{"undelete", deleted(draft()), domain.UndeleteVideo(domain.AnyVersion, late), nil},
		{"purge", deleted(draft()), domain.PurgeVideo(domain.AnyVersion, late), func(v domain.Video) time.Time { return v.PurgeTime }},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.decide(test.video)
			if err != nil {
				t.Fatalf("decide() = %v", err)
			}
			if !got.OccurredAt.Equal(updateTime) || !got.Video.UpdateTime.Equal(updateTime) {
				t.Errorf("occurred at %s, updated at %s, want %s", got.OccurredAt, got.Video.UpdateTime, updateTime)
			}
			if test.at != nil && !test.at(got.Video).Equal(updateTime) {
				t.Errorf("time of the %s = %s, want %s", test.name, test.at(got.Video), updateTime)
			}
		})
	}
}

// An event shares no memory: the caller of a decision may later write to the slices that
// it passed, and the decision has not written to them.
func TestEventSharesNoMemoryWithItsCause(t *testing.T) {
	for _, test := range []struct {
		name   string
		video  domain.Video
		decide func(domain.VideoDetails) domain.VideoDecision
	}{
		{"create", domain.Video{}, func(details domain.VideoDetails) domain.VideoDecision {
			return func(domain.Video) (*domain.VideoEvent, error) { return domain.CreateVideo(videoID, details, stamp) }
		}},
		{"update", draft(), func(details domain.VideoDetails) domain.VideoDecision {
			return domain.UpdateVideo(func(d *domain.VideoDetails) { *d = details }, domain.AnyVersion, stamp)
		}},
		{"update of another field", draft(), func(details domain.VideoDetails) domain.VideoDecision {
			return domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = details.Title }, domain.AnyVersion, stamp)
		}},
		{"publish", draft(), func(domain.VideoDetails) domain.VideoDecision { return domain.PublishVideo(domain.AnyVersion, stamp) }},
		{"unpublish", published(), func(domain.VideoDetails) domain.VideoDecision { return domain.UnpublishVideo(domain.AnyVersion, stamp) }},
		{"delete", draft(), func(domain.VideoDetails) domain.VideoDecision {
			return domain.DeleteVideo(false, domain.AnyVersion, stamp)
		}},
		{"undelete", deleted(draft()), func(domain.VideoDetails) domain.VideoDecision { return domain.UndeleteVideo(domain.AnyVersion, stamp) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			details := otherDetails()
			video := slices.Clone(test.video.Tags)
			got, err := test.decide(details)(test.video)
			if err != nil {
				t.Fatalf("decide() = %v", err)
			}
			want := slices.Clone(got.Video.Tags)
			if diff := cmp.Diff(otherDetails().Tags, details.Tags); diff != "" {
				t.Errorf("tags of the caller (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(video, test.video.Tags); diff != "" {
				t.Errorf("tags of the video (-before +after):\n%s", diff)
			}
			for _, tags := range [][]string{details.Tags, test.video.Tags} {
				for i := range tags {
					tags[i] = "overwritten"
				}
			}
			if diff := cmp.Diff(want, got.Video.Tags); diff != "" {
				t.Errorf("tags of the event (-before +after its causes were overwritten):\n%s", diff)
			}
		})
	}
}
