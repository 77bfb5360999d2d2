package domain_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/domain"
)

// An entry has the details of its video, and is visible if the video is published
// and not deleted.
func TestEntryOfVideo(t *testing.T) {
	for _, test := range []struct {
		name             string
		video            domain.Video
		visible, deleted bool
	}{
		{"draft", draft(), false, false},
		{"published", published(), true, false},
		{"deleted draft", deleted(draft()), false, true},
		{"deleted, was published", deleted(published()), false, true},
		{"purged", purged(), false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := domain.Entry{
				VideoID: test.video.ID, VideoDetails: test.video.VideoDetails, Visible: test.visible, Deleted: test.deleted,
				Version: 3, PublishTime: test.video.PublishTime, UpdateTime: updateTime, CreateUser: test.video.CreateUser, UpdateUser: test.video.UpdateUser,
			}
			if diff := cmp.Diff(want, domain.EntryOf(test.video)); diff != "" {
				t.Errorf("entry (-want +got):\n%s", diff)
			}
		})
	}
}
