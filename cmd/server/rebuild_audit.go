package main

import (
	"encoding/json"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/event"
)

// entry returns what the audit has of a rebuild, but for its counts. A dry run has none.
func (s rebuildSource) entry() (admin.Entry, error) {
	if s.dryRun {
		return admin.Entry{}, nil
	}
	selected := struct {
		Type    string `json:"type"`
		Source  string `json:"source"`
		Restart bool   `json:"restart,omitempty"`
	}{event.AggregateVideo, s.address, s.restart}
	return admin.NewEntry(admin.ActionRebuild, selected, admin.Actor{Name: operatorName(), Via: "command"}, s.reason)
}

// audited returns the entry with the counts of the comparison. The entries themselves may be
// millions, and are not in it.
func (r *rebuilder) audited() admin.Entry {
	e, ahead, extra := r.entry, int64(r.lowered), int64(r.removed)
	e.Items = r.missing + r.behind + r.different + ahead + extra
	e.Before, _ = json.Marshal([]map[string]int64{{ // it cannot fail
		"missing": r.missing, "behind": r.behind, "different": r.different, "ahead": ahead, "extra": extra,
	}})
	e.After, _ = json.Marshal([]map[string]int64{{"entries": r.listed, "lowered": ahead, "removed": extra}})
	return e
}
