package app

import (
	"testing"
	"time"

	"example.com/videocatalog/internal/server"
)

// A tombstone stays for as long as events may be delivered again, and then as long as a
// client may resume a watch of the catalog.
func TestTombstonesOutliveResumeTokens(t *testing.T) {
	t.Parallel()
	const inbox = 768 * time.Hour
	if got, want := (config{InboxRetention: inbox}).tombstoneRetention(), 2*inbox+server.ResumeTokenAge; got != want {
		t.Errorf("tombstones stay for %s, want %s", got, want)
	}
}
