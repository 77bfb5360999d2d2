package event_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
)

// A snapshot carries the state and the version of a video, and says nothing about what
// happened. It is the same message whenever it is made.
func TestEncodeSnapshot(t *testing.T) {
	for _, sample := range samples() {
		want := sample.event.Video
		m, err := event.EncodeVideoSnapshot(want)
		if err != nil {
			t.Fatalf("EncodeSnapshot() of %s = %v", sample.file, err)
		}
		again, err := event.EncodeVideoSnapshot(want)
		if diff := cmp.Diff(m, again); diff != "" || err != nil {
			t.Errorf("EncodeSnapshot() of %s twice = %v (-first +second):\n%s", sample.file, err, diff)
		}
		if m.Repeat != envelope.RepeatSnapshot || m.Type != string(domain.Snapshot) || m.Version != want.Version || !m.OccurredAt.Equal(want.UpdateTime) {
			t.Errorf("EncodeSnapshot() of %s = %+v, want a marked snapshot of version %d", sample.file, m, want.Version)
		}
		parsed, err := envelope.Parse(m.Attributes(), m.Payload)
		if diff := cmp.Diff(m, parsed); diff != "" || err != nil {
			t.Errorf("Parse() of %s = %v (-sent +received):\n%s", sample.file, err, diff)
		}
		got, err := event.DecodeVideo(parsed)
		if err != nil {
			t.Fatalf("Decode() of %s = %v", sample.file, err)
		}
		if diff := cmp.Diff(want, got.Video); diff != "" || got.Type != "" || !domain.IsSnapshot(got.ID) || domain.IsSnapshot(sample.event.ID) {
			t.Errorf("Decode() of %s has type %q and id %s (-want +got):\n%s", sample.file, got.Type, got.ID, diff)
		}
	}
}

// The id of a snapshot is part of the contract: it never changes, so that consumers
// recognize a snapshot that comes again, and it is below the id of every event.
func TestSnapshotID(t *testing.T) {
	v := samples()[0].event.Video
	for _, v.Version = range []int64{1, 2, 1 << 40} {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", event.AggregateVideo, v.ID, v.Version))
		want := fmt.Sprintf("00000000-0000-8%03x-", binary.BigEndian.Uint16(sum[:2])&0xfff)
		m, err := event.EncodeVideoSnapshot(v)
		if err != nil || !strings.HasPrefix(m.ID.String(), want) || m.ID.Variant() != uuid.RFC4122 || [7]byte(m.ID[9:]) != [7]byte(sum[3:]) {
			t.Errorf("id of version %d = %s, %v, want %s and the rest of %x", v.Version, m.ID, err, want, sum[:10])
		}
	}
}
