package admin

import "context"

// Auditor has the audit of a side.
type Auditor interface {
	// ListAudit returns the newest entries of this side before the one with the id before;
	// 0: from the newest. Only whole entries have the items before and after, which can be
	// megabytes.
	ListAudit(ctx context.Context, before int64, maxRows int, whole bool) ([]Entry, error)
}

// ListAudit returns the newest entries of several sides, whole, the newest first, at most
// maxRows.
func ListAudit(ctx context.Context, maxRows int, sides ...Auditor) ([]Entry, error) {
	entries, _, err := listAudit(ctx, nil, maxRows, true, sides)
	return entries, err
}

// ListAuditPage returns a page of at most maxRows entries of several sides, the newest
// first, without the items before and after. after is what the page before returned as
// next; nil: the first page. It is nil after the last page. The sides must be the same for
// all pages.
func ListAuditPage(ctx context.Context, after []int64, maxRows int, sides ...Auditor) (entries []Entry, next []int64, err error) {
	return listAudit(ctx, after, maxRows, false, sides)
}

// listAudit merges the sides by time. Within a side it keeps the order of the ids, so that
// an id per side says where a page ends.
func listAudit(ctx context.Context, after []int64, maxRows int, whole bool, sides []Auditor) (page []Entry, next []int64, err error) {
	rest := make([][]Entry, len(sides))
	for i, side := range sides {
		var before int64
		if i < len(after) {
			before = after[i]
		}
		if rest[i], err = side.ListAudit(ctx, before, maxRows+1, whole); err != nil { // one more says whether more follow
			return nil, nil, err
		}
	}
	for len(page) < maxRows {
		newest := newestOf(rest)
		if newest < 0 {
			return page, nil, nil
		}
		page, rest[newest] = append(page, rest[newest][0]), rest[newest][1:]
	}
	if newestOf(rest) < 0 {
		return page, nil, nil
	}
	for _, entries := range rest {
		before := int64(1) // nothing is before the first id
		if len(entries) > 0 {
			before = entries[0].ID + 1
		}
		next = append(next, before)
	}
	return page, next, nil
}

// newestOf returns the index of the list whose first entry is the newest, or -1 if all are
// empty.
func newestOf(lists [][]Entry) int {
	newest := -1
	for i, list := range lists {
		if len(list) > 0 && (newest < 0 || list[0].CreateTime.After(lists[newest][0].CreateTime)) {
			newest = i
		}
	}
	return newest
}
