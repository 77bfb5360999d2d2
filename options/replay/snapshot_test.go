package replay

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
)

// A snapshot carries the state and the version of a video, and says nothing about what happened. Its id is part of the
// contract: it never changes, so that consumers recognize a snapshot that comes again, and it is below the id of every event.
func TestVideoSnapshot(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := domain.Video{
		ID: uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1000"), State: domain.VideoStatePublished, CreateTime: at, UpdateTime: at.Add(time.Hour), PublishTime: at,
		VideoDetails: domain.VideoDetails{Title: "七人の侍", ReleaseYear: 1954, LanguageCode: "ja", Tags: []string{"drama", ""}},
	}
	for _, want.Version = range []int64{1, 2, 1 << 40} {
		m, err := videoSnapshot(want)
		if err != nil || m.Type != string(domain.Snapshot) || m.Version != want.Version || !m.OccurredAt.Equal(want.UpdateTime) {
			t.Fatalf("videoSnapshot() = %+v, %v, want version %d", m, err, want.Version)
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", event.AggregateVideo, want.ID, want.Version))
		begin := fmt.Sprintf("00000000-0000-8%03x-", binary.BigEndian.Uint16(sum[:2])&0xfff)
		if !strings.HasPrefix(m.ID.String(), begin) || m.ID.Variant() != uuid.RFC4122 || [7]byte(m.ID[9:]) != [7]byte(sum[3:]) || !envelope.IsSnapshot(m.ID) {
			t.Errorf("the id of version %d is %s, want %s and the rest of %x", want.Version, m.ID, begin, sum[:10])
		}
		parsed, err := envelope.Parse(m.Attributes(), m.Payload)
		if diff := cmp.Diff(m, parsed); diff != "" || err != nil {
			t.Errorf("Parse() = %v (-sent +received):\n%s", err, diff)
		}
		got, err := event.DecodeVideo(parsed)
		if diff := cmp.Diff(want, got.Video); diff != "" || got.Type != "" || err != nil {
			t.Errorf("DecodeVideo() has type %q, %v (-want +got):\n%s", got.Type, err, diff)
		}
	}
}
