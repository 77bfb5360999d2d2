package event_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
)

// sample is an event and the bytes that stand for it, for ever.
type sample struct {
	file  string // below testdata, without its extension
	event domain.VideoEvent
	// old: builds of today encode the event in other bytes. It must still be
	// read. Set old instead of deleting or changing a sample.
	old bool
}

var (
	videoID = uuid.MustParse("01890a5d-ac96-7a01-8b02-0c0d0e0f1011")
	epoch   = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
)

// samples are the life of a video, an event of each type, and one more.
func samples() []sample {
	at := func(hours int) time.Time { return epoch.Add(time.Duration(hours) * time.Hour) }
	id := func(n byte) uuid.UUID {
		id := uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1000")
		id[15] = n
		return id
	}
	details := domain.VideoDetails{
		Title: "七人の侍", Description: "Seven Samurai.\n\"They\" win, \\ or do they? 🎬", ReleaseYear: 1954,
		Duration: 207*time.Minute + 123*time.Millisecond, LanguageCode: "ja", Tags: []string{"drama", "black and white", ""},
	}
	renamed := details
	renamed.Title, renamed.Tags = "Seven Samurai", []string{"drama"}
	return []sample{
		{file: "video_created.1", event: domain.VideoEvent{
			ID: id(1), Type: domain.VideoCreated, OccurredAt: at(0),
			Video: domain.Video{ID: videoID, VideoDetails: details, State: domain.VideoStateDraft, Version: 1, CreateTime: at(0), UpdateTime: at(0)},
		}},
		{file: "video_updated.1", event: domain.VideoEvent{
			ID: id(2), Type: domain.VideoUpdated, OccurredAt: at(1), ChangedFields: []string{"title", "tags"},
			Video: domain.Video{ID: videoID, VideoDetails: renamed, State: domain.VideoStateDraft, Version: 2, CreateTime: at(0), UpdateTime: at(1)},
		}},
		{file: "video_published.1", event: domain.VideoEvent{
			ID: id(3), Type: domain.VideoPublished, OccurredAt: at(2),
			Video: domain.Video{ID: videoID, VideoDetails: renamed, State: domain.VideoStatePublished, Version: 3, CreateTime: at(0), UpdateTime: at(2), PublishTime: at(2)},
		}},
		{file: "video_deleted.1", event: domain.VideoEvent{
			ID: id(4), Type: domain.VideoDeleted, OccurredAt: at(3),
			Video: domain.Video{ID: videoID, VideoDetails: renamed, State: domain.VideoStatePublished, Version: 4, CreateTime: at(0), UpdateTime: at(3), PublishTime: at(2), DeleteTime: at(3)},
		}},
		{file: "video_undeleted.1", event: domain.VideoEvent{
			ID: id(5), Type: domain.VideoUndeleted, OccurredAt: at(4),
			Video: domain.Video{ID: videoID, VideoDetails: renamed, State: domain.VideoStatePublished, Version: 5, CreateTime: at(0), UpdateTime: at(4), PublishTime: at(2)},
		}},
		{file: "video_unpublished.1", event: domain.VideoEvent{
			ID: id(6), Type: domain.VideoUnpublished, OccurredAt: at(5),
			Video: domain.Video{ID: videoID, VideoDetails: renamed, State: domain.VideoStateDraft, Version: 6, CreateTime: at(0), UpdateTime: at(5)},
		}},
		{file: "video_purged.1", event: domain.VideoEvent{
			ID: id(8), Type: domain.VideoPurged, OccurredAt: at(6),
			Video: domain.Video{ID: videoID, State: domain.VideoStateDraft, Version: 7, CreateTime: at(0), UpdateTime: at(6), DeleteTime: at(5), PurgeTime: at(6)},
		}},
		{file: "video_published_by.1", event: domain.VideoEvent{
			ID: id(9), Type: domain.VideoPublished, OccurredAt: at(2),
			Video: domain.Video{
				ID: videoID, VideoDetails: renamed, State: domain.VideoStatePublished, Version: 3, CreateTime: at(0), UpdateTime: at(2), PublishTime: at(2),
				CreateUser: "eve@example.com", UpdateUser: "timer draft",
			},
		}},
		// Fields without a value are not on the wire.
		{file: "video_created_title_only.1", event: domain.VideoEvent{
			ID: id(7), Type: domain.VideoCreated, OccurredAt: at(0),
			Video: domain.Video{ID: videoID, VideoDetails: domain.VideoDetails{Title: "Ran"}, State: domain.VideoStateDraft, Version: 1, CreateTime: at(0), UpdateTime: at(0)},
		}},
	}
}

func (s sample) path() string { return filepath.Join("testdata", s.file+".binpb") }

func (s sample) payload(t testing.TB) []byte {
	t.Helper()
	payload, err := os.ReadFile(s.path())
	must(t, err)
	return payload
}

// The bytes of an event are a contract with every consumer, and with the rows
// in every outbox: what was written once is read for ever, and read the same.
// A new type or field needs a new sample, which UPDATE_SAMPLES=1 writes.
func TestWireFormatNeverChanges(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.file, func(t *testing.T) {
			m, err := event.EncodeVideo(&s.event)
			must(t, err)
			if _, err := os.Stat(s.path()); errors.Is(err, fs.ErrNotExist) && !s.old && os.Getenv("UPDATE_SAMPLES") != "" {
				must(t, os.WriteFile(s.path(), m.Payload, 0o644))
			}
			want := s.payload(t)
			if !s.old && !bytes.Equal(m.Payload, want) {
				t.Errorf("Encode() = %x\nwant       %x", m.Payload, want)
			}
			m.Payload = want
			got, err := event.DecodeVideo(m)
			must(t, err)
			same(t, "Decode()", s.event, got)
		})
	}
}

// Every type of event has a sample, and every sample is tested.
func TestSamplesAreComplete(t *testing.T) {
	var tested []string
	types := make(map[domain.EventType]bool)
	for _, s := range samples() {
		tested = append(tested, s.path())
		types[s.event.Type] = true
	}
	oneof := (&videov1.VideoEvent{}).ProtoReflect().Descriptor().Oneofs().ByName("type").Fields()
	for i := range oneof.Len() {
		typ := domain.EventType(oneof.Get(i).Message().Name())
		if !types[typ] {
			t.Errorf("%s has no sample", typ)
		}
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*.binpb"))
	must(t, err)
	for _, file := range files {
		if !slices.Contains(tested, file) {
			t.Errorf("%s is not tested", file)
		}
	}
}
