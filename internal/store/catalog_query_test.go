package store_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// entry returns a visible entry.
func entry(t testing.TB, title, description string, tags ...string) domain.Entry {
	t.Helper()
	return domain.Entry{
		VideoID: newID(t), VideoDetails: domain.VideoDetails{Title: title, Description: description, Tags: tags},
		Visible: true, Version: 1, PublishTime: epoch, UpdateTime: epoch,
	}
}

// catalogOf is a catalog with some entries in it.
func catalogOf(t testing.TB, entries ...domain.Entry) *store.Catalog {
	t.Helper()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	must(t, store.PutEntries(t.Context(), catalog, entries))
	return catalog
}

// titles returns a text for each entry, for the comparison of two lists.
func titles[E any](entries []E, title func(E) string) []string {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = title(e)
	}
	return names
}

// name returns a text that no other entry has.
func name(e domain.Entry) string { return e.Title + " " + e.VideoID.String() }

// The pages have all entries, each once and in order, with any size of a page and
// any filter, although many titles and publish times are equal.
func TestListEntriesPagesThrough(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	var all []domain.Entry
	for range 60 {
		e := entry(t, []string{"Ran", "ran", "Rän", "Ran!", "七人の侍", " "}[random.IntN(6)], "")
		e.VideoID[0] = byte(random.IntN(256)) // the ids say nothing about the order of the writes
		e.PublishTime = epoch.Add(time.Duration(random.IntN(3)) * time.Millisecond)
		e.LanguageCode = []string{"", "en", "ja"}[random.IntN(3)]
		e.ReleaseYear = []int32{0, 1985, 1954}[random.IntN(3)]
		for _, tag := range []string{"war", "drama", "a,b"} {
			if random.IntN(2) == 0 {
				e.Tags = append(e.Tags, tag)
			}
		}
		switch random.IntN(6) {
		case 0:
			e.Visible = false
		case 1:
			e.Visible, e.Deleted = false, true
		}
		all = append(all, e)
	}
	catalog := catalogOf(t, all...)

	filters := []domain.EntryQuery{
		{},
		{LanguageCode: "en"},
		{ReleaseYear: 1985},
		{Tags: []string{"war"}},
		{Tags: []string{"drama", "war"}},
		{Tags: []string{"a,b"}, LanguageCode: "ja", ReleaseYear: 1954},
		{Tags: []string{}},
		{LanguageCode: "e"},
		{LanguageCode: "EN"},
		{Tags: []string{"wa"}},
	}
	for _, query := range filters {
		for _, query.ByTitle = range []bool{false, true} {
			want := slices.DeleteFunc(slices.Clone(all), func(e domain.Entry) bool {
				return !e.Visible || query.LanguageCode != "" && e.LanguageCode != query.LanguageCode ||
					query.ReleaseYear != 0 && e.ReleaseYear != query.ReleaseYear ||
					slices.ContainsFunc(query.Tags, func(tag string) bool { return !slices.Contains(e.Tags, tag) })
			})
			slices.SortFunc(want, func(a, b domain.Entry) int {
				if query.ByTitle {
					return cmp.Or(strings.Compare(a.Title, b.Title), compareIDs(a.VideoID, b.VideoID))
				}
				return cmp.Or(b.PublishTime.Compare(a.PublishTime), compareIDs(b.VideoID, a.VideoID))
			})
			for _, query.Limit = range []int{1, 7, 1000} {
				var got []domain.Entry
				pages(t, catalog, query, func(page []domain.Entry) { got = append(got, page...) })
				same(t, fmt.Sprintf("entries of %+v", query), titles(want, name), titles(got, name))
			}
		}
	}
}

// pages reads a list to its end, and calls between after each page.
func pages(t *testing.T, catalog *store.Catalog, query domain.EntryQuery, between func(page []domain.Entry)) {
	t.Helper()
	for n := 0; ; n++ {
		page, _, err := catalog.ListEntries(t.Context(), query)
		if err != nil || len(page) > query.Limit || n > 10_000 {
			t.Fatalf("ListEntries(%+v) = %d entries, %v, want at most %d", query, len(page), err, query.Limit)
		}
		if len(page) == 0 {
			return
		}
		last := page[len(page)-1]
		query.After = &domain.EntryCursor{PublishTime: last.PublishTime, Title: last.Title, VideoID: last.VideoID}
		between(page)
	}
}

// A change between two pages moves only the entry that it changes.
func TestListEntriesSurvivesChanges(t *testing.T) {
	t.Parallel()
	for _, byTitle := range []bool{false, true} {
		t.Run(fmt.Sprintf("byTitle=%t", byTitle), func(t *testing.T) {
			t.Parallel()
			var all []domain.Entry
			for i := range 20 {
				e := entry(t, fmt.Sprintf("Title %02d", i), "")
				e.PublishTime = epoch.Add(-time.Duration(i) * time.Second)
				all = append(all, e)
			}
			catalog := catalogOf(t, all...)
			seen := make(map[uuid.UUID]int)
			pages(t, catalog, domain.EntryQuery{ByTitle: byTitle, Limit: 3}, func(page []domain.Entry) {
				for _, e := range page {
					seen[e.VideoID]++
				}
				// The last entry becomes hidden, and a new one belongs to an earlier page.
				last := page[len(page)-1]
				last.Visible, last.Version = false, last.Version+1
				before := entry(t, "A", "")
				before.PublishTime = epoch.Add(time.Hour)
				must(t, store.PutEntries(t.Context(), catalog, []domain.Entry{last, before}))
			})
			for _, e := range all {
				if seen[e.VideoID] != 1 {
					t.Errorf("%s was seen %d times, want once", e.Title, seen[e.VideoID])
				}
			}
		})
	}
}

// An entry that moves while a list is read is listed at its new place: a second time on
// a later page, or not at all if its new place is on a page that was read before.
func TestListEntriesFollowsWhatMoves(t *testing.T) {
	t.Parallel()
	b, c, d := entry(t, "B", ""), entry(t, "C", ""), entry(t, "D", "")
	catalog := catalogOf(t, b, c, d)
	var got []string
	pages(t, catalog, domain.EntryQuery{ByTitle: true, Limit: 1}, func(page []domain.Entry) {
		got = append(got, page[0].Title)
		if len(got) > 1 {
			return
		}
		b.Title, c.Title, b.Version, c.Version = "E", "A", b.Version+1, c.Version+1
		must(t, store.PutEntries(t.Context(), catalog, []domain.Entry{b, c}))
	})
	if diff := gocmp.Diff([]string{"B", "D", "E"}, got); diff != "" {
		t.Errorf("met (-want +got): B again as E, and C not at all\n%s", diff)
	}
}

// search returns the titles of what is found, best first.
func search(t testing.TB, catalog *store.Catalog, words string) []string {
	t.Helper()
	matches, _, err := catalog.SearchEntries(t.Context(), domain.SearchQuery{Words: words, Limit: 100})
	if err != nil {
		t.Fatalf("SearchEntries(%q) = %v", words, err)
	}
	for i := 1; i < len(matches); i++ {
		if matches[i].Rank > matches[i-1].Rank {
			t.Errorf("rank %d of %q is %g, after %g", i, words, matches[i].Rank, matches[i-1].Rank)
		}
	}
	return titles(matches, func(m domain.Match) string { return m.Title })
}

// A word in the title counts more than a word in a tag, and a word in a tag
// more than any number of the same word in the description.
func TestSearchPrefersTitles(t *testing.T) {
	t.Parallel()
	said := func(n int) string { return strings.Repeat("the samurai and another ", n) }
	for _, test := range []struct {
		name        string
		title       domain.Entry
		tags        domain.Entry
		description domain.Entry
		words       string
	}{
		{"once each", entry(t, "Samurai", ""), entry(t, "Tagged", "", "samurai"), entry(t, "Described", "a samurai"), "samurai"},
		{"often", entry(t, "The Samurai of the North and the South", ""), entry(t, "Tagged", "", "samurai", "samurai film"), entry(t, "Described", said(30)), "samurai"},
		{"a long text besides", entry(t, "Samurai", strings.Repeat("word ", 1000)), entry(t, "Tagged", strings.Repeat("word ", 1000), "samurai"), entry(t, "Described", "samurai"), "samurai"},
		{"two words", entry(t, "Seven Samurai", ""), entry(t, "Tagged", "", "seven", "samurai"), entry(t, "Described", "seven samurai"), "samurai seven"},
		{"one of two", entry(t, "Samurai", ""), entry(t, "Tagged", "", "samurai"), entry(t, "Described", said(10)), "samurai or ronin"},
		{"one but not another", entry(t, "Samurai", ""), entry(t, "Tagged", "", "samurai"), entry(t, "Described", said(10)), "samurai -ronin"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			catalog := catalogOf(t, test.description, test.title, test.tags)
			want := []string{test.title.Title, "Tagged", "Described"}
			same(t, "found", want, search(t, catalog, test.words))
		})
	}
}

// A query has the syntax of web search engines: phrases, or, and a hyphen for not.
func TestSearchUnderstandsTheWordsOfAWebSearch(t *testing.T) {
	t.Parallel()
	hidden := entry(t, "Seven Samurai (director's cut)", "samurai")
	hidden.Visible = false
	gone := entry(t, "Samurai, deleted", "samurai")
	gone.Visible, gone.Deleted = false, true
	catalog := catalogOf(t,
		entry(t, "Seven Samurai", "Farmers hire seven men.", "black and white"),
		entry(t, "Samurai Seven", "An animated series."),
		entry(t, "Ran", "A king and his three sons.", "drama"),
		entry(t, "七人の侍", "", "侍 映画"),
		hidden, gone,
	)
	for words, want := range map[string][]string{
		"samurai":                  {"Samurai Seven", "Seven Samurai"},
		"SAMURAI":                  {"Samurai Seven", "Seven Samurai"},
		"seven samurai":            {"Samurai Seven", "Seven Samurai"},
		`"seven samurai"`:          {"Seven Samurai"},
		`"samurai seven"`:          {"Samurai Seven"},
		`"seven men"`:              {"Seven Samurai"},
		"samurai -series":          {"Seven Samurai"},
		`samurai -"samurai seven"`: {"Seven Samurai"},
		"ran or series":            {"Ran", "Samurai Seven"},
		"king OR farmers":          {"Ran", "Seven Samurai"},
		"samurai king":             {},
		"drama sons":               {"Ran"},
		"samur":                    {"Samurai Seven", "Seven Samurai"},
		"amurai SEV":               {"Samurai Seven", "Seven Samurai"},
		"七人の侍":                     {"七人の侍"},
		"映画":                       {"七人の侍"},
		"director":                 {},
		"deleted":                  {},
		"-samurai":                 {"Ran", "七人の侍"},
		"-nothing":                 {"Ran", "Samurai Seven", "Seven Samurai", "七人の侍"},
		"or":                       {},
		"samurai or":               {}, // at the end, or is a word
		"the":                      {}, // no word is too common
		"a":                        {"Ran"},
		"black white":              {"Seven Samurai"},
		"king ------- sons":        {"Ran"}, // a row of hyphens is no negation
		"three; DROP TABLE sons":   {},
		"sons'":                    {"Ran"},
	} {
		got := search(t, catalog, words)
		slices.Sort(got)
		same(t, fmt.Sprintf("found by %s", words), want, got)
	}
}

// A long query is no error: the number of its operators and words is limited.
func TestSearchTakesLongQueries(t *testing.T) {
	t.Parallel()
	catalog := catalogOf(t, entry(t, "Ran", "a 🎬 of \"war\" & peace"))
	for _, words := range []string{
		strings.Repeat("ran ", 1_000), strings.Repeat("x", 10_000), strings.Repeat("-", 10_000), "ran " + strings.Repeat(" (-", 40) + " ran", strings.Repeat("-\v", 40), strings.Repeat(`"`, 1_001),
		strings.Repeat("-ran ", 1_000), strings.Repeat("or ", 1_000), strings.Repeat(`"a b" `, 1_000), strings.Repeat("🎬", 1_000), strings.Repeat("x-", 500), strings.Repeat("a.", 500), strings.Repeat("(", 10_000),
	} {
		if _, _, err := catalog.SearchEntries(t.Context(), domain.SearchQuery{Words: words, Limit: 10}); err != nil {
			t.Errorf("SearchEntries(%.40q) of %d bytes = %v", words, len(words), err)
		}
	}
}

// The pages have all matches, each once, with any size of a page, although most
// match equally well.
func TestSearchPagesThrough(t *testing.T) {
	t.Parallel()
	var all []domain.Entry
	for i := range 40 {
		e := entry(t, "Samurai", "")
		switch i % 5 {
		case 1:
			e = entry(t, "Tagged", "", "samurai")
		case 2:
			e = entry(t, "Described", strings.Repeat("samurai and ", 1+i/10))
		}
		all = append(all, e)
	}
	catalog := catalogOf(t, all...)
	for _, words := range []string{"samurai", "samurai or and", "-nothing", "samurai -and"} {
		var first []string
		for _, limit := range []int{1000, 1, 3, 20} {
			query := domain.SearchQuery{Words: words, Limit: limit}
			var got []string
			for {
				page, _, err := catalog.SearchEntries(t.Context(), query)
				if err != nil {
					t.Fatalf("SearchEntries(%+v) = %v", query, err)
				}
				if len(page) > limit {
					t.Fatalf("SearchEntries(%+v) = %d matches, want at most %d", query, len(page), limit)
				}
				got = append(got, titles(page, func(m domain.Match) string { return name(m.Entry) })...)
				if len(page) == 0 || len(got) > len(all) {
					break
				}
				last := page[len(page)-1]
				query.After = &domain.MatchCursor{Rank: last.Rank, VideoID: last.VideoID}
			}
			if first == nil {
				first = got
				want := titles(all, name)
				if words == "samurai -and" {
					want = slices.DeleteFunc(want, func(name string) bool { return strings.HasPrefix(name, "Described") })
				}
				same(t, fmt.Sprintf("found by %s", words), slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got)))
			}
			same(t, fmt.Sprintf("found by %s in pages of %d", words, limit), first, got)
		}
	}
}
