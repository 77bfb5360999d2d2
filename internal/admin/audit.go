package admin

import (
	"cmp"
	"context"
	"slices"
)

// Auditor has the audit of a side.
type Auditor interface {
	// ListAudit returns the newest entries of this side before the one with the id before;
	// 0: from the newest.
	ListAudit(ctx context.Context, before int64, maxRows int) ([]Entry, error)
}

// ListAudit returns the newest entries of several sides, the newest first, at most maxRows.
func ListAudit(ctx context.Context, maxRows int, sides ...Auditor) ([]Entry, error) {
	var all []Entry
	for _, side := range sides {
		entries, err := side.ListAudit(ctx, 0, maxRows)
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	slices.SortStableFunc(all, func(a, b Entry) int { return cmp.Or(b.CreateTime.Compare(a.CreateTime), cmp.Compare(b.ID, a.ID)) })
	return all[:min(len(all), maxRows)], nil
}
