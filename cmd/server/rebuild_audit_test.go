package main

import (
	"strings"
	"testing"

	"example.com/videocatalog/internal/admin"
)

// A rebuild says why, and the audit has it with the swap: what differed, and what there is
// now. A dry run needs no reason and leaves no entry.
func TestRebuildIsInTheAudit(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t)
	ids := s.create(t, p, 5)
	for _, sql := range []string{
		"UPDATE video_catalog_read.video_projection SET title = 'damaged' WHERE video_id = '" + ids[0] + "'",
		"DELETE FROM video_catalog_read.video_projection WHERE video_id = '" + ids[1] + "'",
		"UPDATE video_catalog_read.video_projection SET version = 7 WHERE video_id = '" + ids[2] + "'",
		"DELETE FROM video_catalog.videos WHERE id = '" + ids[3] + "'",
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{}, {"--reason", ""}, {"--reason", strings.Repeat("x", 501)}} {
		if _, err := s.command(t, append([]string{"rebuild"}, args...)...); exitOf(err) != exitUsage || !strings.Contains(err.Error(), "reason") {
			t.Errorf("rebuild %q = %v, want exit code %d about the reason", args, err, exitUsage)
		}
	}
	if out, err := s.command(t, "rebuild", "--dry-run"); err != nil || s.audited(t) != 0 {
		t.Errorf("dry run = %q, %v, with %d entries in the audit, want none", out, err, s.audited(t))
	}
	if out, err := s.command(t, "rebuild", "--reason", "a disk was full"); err != nil {
		t.Errorf("rebuild = %q, %v", out, err)
	}
	entries := s.audit(t, admin.ActionRebuild)
	if len(entries) != 1 {
		t.Fatalf("audit = %+v, want one entry: the databases were known", entries)
	}
	checkAudit(t, entries[0], 4, `{"type": "video"}`, "a disk was full",
		`[{"missing": 1, "behind": 0, "different": 1, "ahead": 1, "extra": 1}]`, `[{"entries": 4, "lowered": 1, "removed": 1}]`)

	s.replace(t)
	if out, err := s.command(t, "rebuild", "--reason", "failover"); err != nil || s.unknown(t) != 0 {
		t.Errorf("rebuild = %q, %v, and %d databases are not known, want 0", out, err, s.unknown(t))
	}
	if entries = s.audit(t, admin.ActionRebuild)[1:]; len(entries) != 3 {
		t.Fatalf("audit of the second rebuild = %+v, want the swap, and a known database per side", entries)
	}
	for _, e := range entries {
		if e.ActionID != entries[0].ActionID || e.Reason != "failover" {
			t.Errorf("audit has %+v, want one action %s", e, entries[0].ActionID)
		}
	}
}
