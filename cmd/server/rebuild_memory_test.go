package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"example.com/videocatalog/internal/deep"
)

var rebuildVideos = flag.Int("rebuild-videos", 20_000, "how many videos TestRebuildMemoryIsBounded rebuilds")

// A rebuild keeps no list of all entries: its memory does not grow with the catalog.
// docs/actions.md has what it takes for a million: -rebuild-videos=1000000.
func TestRebuildMemoryIsBounded(t *testing.T) {
	deep.Test(t)
	const mostMiB = 80
	s := newStack(t)
	s.fillOwner(t, *rebuildVideos)
	if _, err := s.pool.Exec(t.Context(), "ANALYZE video_catalog.videos"); err != nil {
		t.Fatal(err)
	}
	for _, catalog := range []string{"an empty catalog", "one that is right"} {
		start := time.Now()
		cmd, stderr := s.startRebuild(t)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		mib, err := peakUntil(cmd.Process.Pid, ended)
		if err != nil {
			t.Fatalf("rebuild = %v: %s", err, stderr)
		}
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		t.Logf("%s: %d videos in %s, %d MiB; last progress: %s", catalog, *rebuildVideos, time.Since(start).Round(time.Second), mib, lines[len(lines)-1])
		if mib > mostMiB {
			t.Errorf("%s: the rebuild has used %d MiB, want at most %d", catalog, mib, mostMiB)
		}
	}
	if got := s.count(t, unlike); got != 0 {
		t.Errorf("entries that differ = %d, want 0", got)
	}
}

// peakUntil returns the peak, in MiB, of the resident memory of a process until it ends, on Linux. It is
// not that of getrusage, which begins with the memory of the process that has started it.
func peakUntil(pid int, ended <-chan error) (mib int, err error) {
	for {
		select {
		case err := <-ended:
			return mib, err
		case <-time.After(5 * time.Millisecond):
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it ends
		}
		var kib int
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		if _, err := fmt.Sscan(peak, &kib); err == nil {
			mib = max(mib, kib>>10)
		}
	}
}
