package main

import (
	"flag"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/videocatalog/internal/deep"
)

var rebuildVideos = flag.Int("rebuild-videos", 20_000, "how many videos TestRebuildMemoryIsBounded rebuilds")

// A rebuild keeps no list of all entries: its memory does not grow with the catalog.
// docs/operations.md has what it takes for a million: -rebuild-videos=1000000.
func TestRebuildMemoryIsBounded(t *testing.T) {
	deep.Test(t)
	const mostMiB = 80
	s := newStack(t)
	p := s.start(t, "ROLES=api")
	if _, err := s.pool.Exec(t.Context(), strings.ReplaceAll(ownersVideos, "$1", fmt.Sprint(*rebuildVideos))+"; ANALYZE video_catalog.videos"); err != nil {
		t.Fatal(err)
	}
	for _, catalog := range []string{"an empty catalog", "one that is right"} {
		start := time.Now()
		cmd, stderr := s.startRebuild(t, p.addr)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("rebuild = %v: %s", err, stderr)
		}
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			t.Fatal("no resource usage of the process")
		}
		mib := usage.Maxrss >> 10 // KiB, on Linux
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
