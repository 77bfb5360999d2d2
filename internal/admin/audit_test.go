package admin

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// auditor is the audit of a side, in the order of the ids.
type auditor []Entry

func (a auditor) ListAudit(_ context.Context, before int64, maxRows int, _ bool) ([]Entry, error) {
	var found []Entry
	for _, e := range slices.Backward(a) {
		if len(found) < maxRows && (before == 0 || e.ID < before) {
			found = append(found, e)
		}
	}
	return found, nil
}

// at returns the entries of a side with these seconds, with ids from 1.
func at(side string, seconds ...int64) auditor {
	var a auditor
	for i, s := range seconds {
		a = append(a, Entry{ID: int64(i) + 1, CreateTime: time.Unix(s, 0), Reason: side})
	}
	return a
}

// The pages of two sides have every entry once, the newest first, whatever their size is, also
// if ids of a side are not in the order of time. What is appended meanwhile is not in a page.
func TestAuditIsListedByPages(t *testing.T) {
	t.Parallel()
	type entry struct {
		Side string
		ID   int64
	}
	for name, test := range map[string]struct {
		commands, queries auditor
		want              []entry
	}{
		"mixed":            {at("c", 1, 3, 5), at("q", 2, 4), []entry{{"c", 3}, {"q", 2}, {"c", 2}, {"q", 1}, {"c", 1}}},
		"one is older":     {at("c", 1, 2), at("q", 3, 4), []entry{{"q", 2}, {"q", 1}, {"c", 2}, {"c", 1}}},
		"one is empty":     {at("c", 1, 2, 3), nil, []entry{{"c", 3}, {"c", 2}, {"c", 1}}},
		"both are":         {nil, nil, nil},
		"ids not in order": {at("c", 5, 1, 6), at("q", 3), []entry{{"c", 3}, {"q", 1}, {"c", 2}, {"c", 1}}},
	} {
		for size := 1; size <= len(test.want)+1; size++ {
			var got []entry
			var after []int64
			for pages := 0; ; pages++ {
				page, next, err := ListAuditPage(t.Context(), after, size, test.commands, test.queries)
				if err != nil || len(page) > size || pages > len(test.want) {
					t.Fatalf("%s: page %d of size %d = %v, %v", name, pages, size, page, err)
				}
				for _, e := range page {
					got = append(got, entry{e.Reason, e.ID})
				}
				if after = next; next == nil {
					break
				}
				test.commands = append(test.commands, Entry{ID: int64(len(test.commands)) + 1, CreateTime: time.Unix(100, 0), Reason: "c"})
				test.queries = append(test.queries, Entry{ID: int64(len(test.queries)) + 1, CreateTime: time.Unix(100, 0), Reason: "q"})
			}
			test.commands, test.queries = withoutLate(test.commands), withoutLate(test.queries)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s: pages of size %d (-want +got):\n%s", name, size, diff)
			}
		}
	}
}

func withoutLate(a auditor) auditor {
	return slices.DeleteFunc(a, func(e Entry) bool { return e.CreateTime.Unix() == 100 })
}
