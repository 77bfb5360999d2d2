package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// The filters restrict queries as api/proto promises.
func TestFiltersRestrictQueries(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string]domain.VideoQuery{
		"":                        {},
		" \t\n":                   {},
		"state = STATE_DRAFT":     {State: domain.VideoStateDraft},
		"state=STATE_PUBLISHED":   {State: domain.VideoStatePublished},
		`language_code = "pt-BR"`: {LanguageCode: "pt-BR"},
		`language_code = "PT-br"`: {LanguageCode: "pt-BR"},
		`language_code = "iw"`:    {LanguageCode: "he"},
		`language_code="en"  AND  state = STATE_DRAFT`: {LanguageCode: "en", State: domain.VideoStateDraft},
	} {
		var got domain.VideoQuery
		if err := filterVideos(filter, &got); err != nil {
			t.Errorf("filterVideos(%q) = %v", filter, err)
		}
		same(t, fmt.Sprintf("filterVideos(%q)", filter), want, got)
	}
	for filter, want := range map[string]domain.EntryQuery{
		"":                                {},
		"release_year = 1994":             {ReleaseYear: 1994},
		`tags:"drama"`:                    {Tags: []string{"drama"}},
		`tags:"drama" AND tags:"a \"b\""`: {Tags: []string{"drama", `a "b"`}},
		`tags : "愛" AND release_year = 1994 AND language_code = "zh"`: {Tags: []string{"愛"}, ReleaseYear: 1994, LanguageCode: "zh"},
	} {
		var got domain.EntryQuery
		if err := filterEntries(filter, &got); err != nil {
			t.Errorf("filterEntries(%q) = %v", filter, err)
		}
		same(t, fmt.Sprintf("filterEntries(%q)", filter), want, got)
	}
}

// A filter that is not supported is refused, and never read as another one.
func TestFiltersRefuseWhatTheyDoNotSupport(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{
		"state", "state =", "= STATE_DRAFT", "STATE_DRAFT", "AND", "state = STATE_DRAFT AND", "AND state = STATE_DRAFT",
		"state = STATE_UNSPECIFIED", "state = draft", `state = "STATE_DRAFT"`, "state = 1", "state != STATE_DRAFT", "state : STATE_DRAFT", "state == STATE_DRAFT",
		"state = STATE_DRAFT state = STATE_DRAFT", "state = STATE_DRAFT AND state = STATE_DRAFT", "state = STATE_DRAFT AND AND state = STATE_DRAFT",
		`state = STATE_DRAFT OR language_code = "en"`, "NOT state = STATE_DRAFT", "-state = STATE_DRAFT", "(state = STATE_DRAFT)",
		`state = STATE_DRAFT and language_code = "en"`, `state = STATE_DRAFT "AND" language_code = "en"`, `state = STATE_DRAFT, language_code = "en"`,
		`language_code = en`, `language_code = ""`, `language_code = "en`, `language_code = 'en'`, "language_code = `en`", `language_code > "a"`, `language_code = "e" "n"`,
		"language_code = \"a\x00\"", `language_code = "\x00"`, `language_code = "\xff"`, "language_code = \"\xff\"", "language_code = \"a\nb\"", "\x00",
		`language_code = "en*"`, `language_code = "*"`, `language_code = "\x2a"`, `language_code = "qq"`, `language_code = "e_n"`, `language_code = "english"`,
		`title = "x"`, `video.state = STATE_DRAFT`, `State = STATE_DRAFT`, "state = STATE_DRAFT // or not",
	} {
		checkRefused(t, "filterVideos", filter, filterVideos(filter, new(domain.VideoQuery)), "filter", "state = STATE_DRAFT")
	}
	for filter, rule := range map[string]string{
		`language_code = "en*"`: "wildcard", `tags:"dra*"`: "wildcard", `language_code = "qq"`: "language_code must be a BCP 47 tag",
	} {
		checkRefused(t, "filterEntries", filter, filterEntries(filter, new(domain.EntryQuery)), "filter", rule)
	}
	for _, filter := range []string{
		"release_year = 0", "release_year = -1", "release_year = 1994.5", `release_year = "1994"`, "release_year = 99999999999", "release_year = 0x7CA", "release_year = 1_994",
		"release_year > 1994", "release_year = 1994 AND release_year = 1995", `tags = "drama"`, `tags:drama`, `tags:""`, `tags:*`, `tags:"dra*"`, "state = STATE_DRAFT",
	} {
		checkRefused(t, "filterEntries", filter, filterEntries(filter, new(domain.EntryQuery)), "filter", "release_year = 1994")
	}
}

// An order is one of two, however it is spaced.
func TestOrderByChoosesAnOrder(t *testing.T) {
	t.Parallel()
	for orderBy, want := range map[string]bool{"": false, "create_time desc": false, " create_time  desc ": false, "create_time": true, "create_time asc": true} {
		var got domain.VideoQuery
		if err := orderVideos(orderBy, &got); err != nil || got.OldestFirst != want {
			t.Errorf("orderVideos(%q) = %v, oldest first %v, want %v", orderBy, err, got.OldestFirst, want)
		}
	}
	for orderBy, want := range map[string]bool{"": false, "publish_time desc": false, "title": true, "title asc": true} {
		var got domain.EntryQuery
		if err := orderEntries(orderBy, &got); err != nil || got.ByTitle != want {
			t.Errorf("orderEntries(%q) = %v, by title %v, want %v", orderBy, err, got.ByTitle, want)
		}
	}
	for _, orderBy := range []string{"title", "create_time DESC", "create_time,title", "create_time desc,", "desc", "\x00"} {
		checkRefused(t, "orderVideos", orderBy, orderVideos(orderBy, new(domain.VideoQuery)), "order_by", "create_time desc")
	}
	for _, orderBy := range []string{"create_time", "publish_time", "title desc"} {
		checkRefused(t, "orderEntries", orderBy, orderEntries(orderBy, new(domain.EntryQuery)), "order_by", "publish_time desc")
	}
}

// checkRefused wants an error about a field, with a hint of what is supported.
func checkRefused(t *testing.T, function, input string, err error, field, hint string) {
	t.Helper()
	got := &problem.Error{}
	ok := errors.As(err, &got)
	if !ok || got.Kind != problem.Invalid || got.Field != field || !strings.Contains(got.Message, hint) {
		t.Errorf("%s(%q) = %v, want Invalid about %s with %q", function, input, err, field, hint)
	}
}

// No filter makes the parser panic, and no filter is accepted with a value that
// the store could not take.
func FuzzFilter(f *testing.F) {
	f.Add(`language_code = "en" AND release_year = 1994 AND tags:"drama" AND tags:"\x00"`)
	f.Add(`state = STATE_DRAFT AND language_code = "\xff"`)
	f.Fuzz(func(t *testing.T, filter string) {
		filter = strings.TrimPrefix(filter, "\ufeff") // the scanner skips it
		var entries domain.EntryQuery
		if err := filterEntries(filter, &entries); err == nil {
			for _, text := range append(entries.Tags, entries.LanguageCode) {
				if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
					t.Errorf("filterEntries(%q) let %q through", filter, text)
				}
			}
			if entries.ReleaseYear < 0 || strings.TrimSpace(filter) != "" && entries.ReleaseYear == 0 && entries.LanguageCode == "" && entries.Tags == nil {
				t.Errorf("filterEntries(%q) = %+v, which restricts nothing", filter, entries)
			}
		}
		var videos domain.VideoQuery
		if err := filterVideos(filter, &videos); err == nil && strings.TrimSpace(filter) != "" && videos == (domain.VideoQuery{}) {
			t.Errorf("filterVideos(%q) restricts nothing", filter)
		}
	})
}
