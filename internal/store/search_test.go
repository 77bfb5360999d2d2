package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// Text in any language is found in any form in which it may be typed.
func TestSearchFindsAnyLanguage(t *testing.T) {
	t.Parallel()
	catalog := catalogOf(t,
		entry(t, "Amélie Poulain", ""), entry(t, "Kanał", ""), entry(t, "Żółw", "łódź"), entry(t, "Αἰολικὴ Γῆ", ""), entry(t, "Ёлки", ""),
		entry(t, "Straße", ""), entry(t, "İstanbul ışık", ""), entry(t, "مُغُلِ اعظم", ""), entry(t, "ﬁrst № ２", ""),
		entry(t, "七武士、羅生門。ゴジラ・東京", "", "時代劇"), entry(t, "올드보이", ""), entry(t, "パリ", "スーパーマン"), entry(t, "ラーメン屋IMAX2000", ""),
		entry(t, "ลุงบุญมีระลึกชาติ", ""), entry(t, "शोले", ""),
	)
	for words, want := range map[string]string{
		"AMÉLIE": "Amélie Poulain", "amelie": "Amélie Poulain", "Ame\u0301lie": "Amélie Poulain", "ＡＭＥＬＩＥ": "Amélie Poulain", "poul": "Amélie Poulain",
		"kanal": "Kanał", "ZOLW": "Żółw", "lodz": "Żółw", "αιολικη": "Αἰολικὴ Γῆ", "ΓΗ": "Αἰολικὴ Γῆ", "елки": "Ёлки",
		"STRASSE": "Straße", "strasse": "Straße", "istanbul": "İstanbul ışık", "ISIK": "İstanbul ışık", "مغل": "مُغُلِ اعظم", "first 2": "ﬁrst № ２",
		"七武士": "七武士、羅生門。ゴジラ・東京", "武士": "七武士、羅生門。ゴジラ・東京", "七": "七武士、羅生門。ゴジラ・東京", "士": "七武士、羅生門。ゴジラ・東京",
		"羅生門": "七武士、羅生門。ゴジラ・東京", "ｺﾞｼﾞﾗ": "七武士、羅生門。ゴジラ・東京", "コシラ": "", "東京　ゴジラ": "七武士、羅生門。ゴジラ・東京", "武士羅": "",
		"七士": "", "代劇": "七武士、羅生門。ゴジラ・東京", "보이": "올드보이", "올드보이": "올드보이", "올드": "올드보이", "\u1107\u1169\u110b\u1175": "올드보이", "보": "올드보이", "바": "",
		"ハリ": "", "ﾊﾟﾘ": "パリ", "スーパー": "パリ", "ーパーマ": "パリ", "imax": "ラーメン屋IMAX2000", "メン屋 imax": "ラーメン屋IMAX2000", "屋IMAX2000": "ラーメン屋IMAX2000",
		"ระลึก": "ลุงบุญมีระลึกชาติ", "शोले": "शोले", "शोल": "शोले", "शल": "",
	} {
		got := strings.Join(search(t, catalog, words), ", ")
		if got != want {
			t.Errorf("%q finds %q, want %q", words, got, want)
		}
	}
}

// Whole words come first, wherever they are, then beginnings of words of a title,
// then their other parts. Parts of words of tags and descriptions do not match.
func TestSearchPrefersWholeWords(t *testing.T) {
	t.Parallel()
	catalog := catalogOf(t,
		entry(t, "Sunbathe", ""), entry(t, "Batman", ""), entry(t, "Described", "a bat"), entry(t, "Tagged", "", "bat"), entry(t, "The Bat", ""),
		entry(t, "Acrobats", "acrobats", "acrobatics"), entry(t, "None", "batmen", "batter"), entry(t, "M", ""), entry(t, "Mother", ""),
		entry(t, "Two Samurai", ""), entry(t, "Samurai", "two"), entry(t, "Ronin", "two samurai"),
	)
	for words, want := range map[string][][]string{
		"bat":         {{"The Bat"}, {"Tagged"}, {"Described"}, {"Batman"}, {"Acrobats", "Sunbathe"}},
		"ba":          {{"Batman", "The Bat"}},
		"m":           {{"M"}},
		"mo":          {{"Mother"}},
		"two samu":    {{"Two Samurai"}, {"Samurai"}},
		"samurai two": {{"Two Samurai"}, {"Ronin", "Samurai"}},
		`"bat"`:       {{"The Bat"}, {"Tagged"}, {"Described"}},
		"-bat":        {{"Acrobats", "Batman", "M", "Mother", "None", "Ronin", "Samurai", "Sunbathe", "Two Samurai"}},
	} {
		got := search(t, catalog, words)
		for _, group := range want {
			group = group[:min(len(group), len(got))]
			slices.Sort(got[:len(group)])
			same(t, fmt.Sprintf("found by %s", words), group, got[:len(group)])
			got = got[len(group):]
		}
		if len(got) > 0 {
			t.Errorf("found by %s besides: %q", words, got)
		}
	}
}

// A query without a letter or digit finds nothing, and is no error.
func TestSearchForNoLetters(t *testing.T) {
	t.Parallel()
	catalog := catalogOf(t, entry(t, "🎬 Ran", "!"))
	for _, words := range []string{"🎬", "!", "-", `"!"`, "\u0301", "\u200b", "\x00", "\xff"} {
		if got := search(t, catalog, words); len(got) > 0 {
			t.Errorf("%q finds %q, want nothing", words, got)
		}
	}
}

// anyText draws a text of several scripts, and of characters with a meaning in
// PostgreSQL or in our queries.
func anyText(most int) *rapid.Generator[string] {
	runes := rapid.OneOf(
		rapid.RuneFrom([]rune("aA bB'é\u0301ßıİﬁ½ﷺ㌀ −-\"\\:*&|!()<>~^%$\n\tor")),
		rapid.RuneFrom([]rune("七人の侍ゴジラｺﾞー々올드보이\u1107\u1161ระลึก 、・　🎬\u200d\ufe0f")),
		rapid.Rune(),
	)
	return rapid.Map(rapid.StringOfN(runes, 0, most, -1), func(s string) string { return strings.ReplaceAll(s, "\x00", "") })
}

// PostgreSQL accepts every text of an entry, and every query.
func TestSearchTakesAnyText(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	id, version := newID(t), int64(0)
	rapid.Check(t, func(t *rapid.T) {
		version++
		e := domain.Entry{VideoID: id, Visible: true, Version: version, PublishTime: epoch, UpdateTime: epoch, VideoDetails: domain.VideoDetails{
			Title: anyText(200).Draw(t, "title"), Description: anyText(1000).Draw(t, "description"), Tags: rapid.SliceOfN(anyText(50), 0, 5).Draw(t, "tags"),
		}}
		if err := store.PutEntries(t.Context(), catalog, []domain.Entry{e}); err != nil {
			t.Fatalf("PutEntries() = %v", err)
		}
		for _, words := range []string{anyText(500).Draw(t, "words"), e.Title} {
			if _, _, err := catalog.SearchEntries(t.Context(), domain.SearchQuery{Words: words, Limit: 10}); err != nil {
				t.Fatalf("SearchEntries(%q) = %v", words, err)
			}
		}
	})
}

// Texts of the largest size, and larger texts, are projected, and their
// beginnings are found.
func TestSearchTakesLargeTexts(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	var han, words strings.Builder
	for i := range 10_000 {
		han.WriteRune(rune(0x20000 + i))
		words.WriteString(string(rune('𞤀' + i%60)))
		words.WriteString(string(rune('𞤀'+i/60%60)) + " ")
	}
	for name, text := range map[string]string{
		"distinct characters": han.String(), "distinct words": words.String(), "one that becomes 18": strings.Repeat("ﷺ", 10_000),
		"one word": strings.Repeat("x", 10_000), "squares": strings.Repeat("㌀", 10_000), "a megabyte": strings.Repeat(han.String(), 30), "words of a megabyte": strings.Repeat(words.String(), 20),
	} {
		e := entry(t, "begin "+string([]rune(text)[:194]), text, string([]rune(text)[:50]))
		if err := store.PutEntries(t.Context(), catalog, []domain.Entry{e}); err != nil {
			t.Fatalf("%s: PutEntries() = %v", name, err)
		}
		if got := search(t, catalog, e.Title); !slices.Contains(got, e.Title) {
			t.Errorf("%s: not found", name)
		}
	}
}

// Every word of a title, its beginnings of two characters and parts of three,
// and every part of a dense text, finds the title.
func TestSearchFindsEveryPartOfATitle(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	id, version := newID(t), int64(0)
	word := rapid.Custom(func(t *rapid.T) string {
		if rapid.Bool().Draw(t, "dense") {
			return rapid.StringOfN(rapid.RuneFrom([]rune("七人の侍ゴジラー々올드보이ระล")), 1, 8, -1).Draw(t, "run")
		}
		return rapid.StringOfN(rapid.RuneFrom([]rune("aAbnoOrR19éÉłßяЯñ")), 1, 8, -1).Draw(t, "word")
	})
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(word, 1, 8).Draw(t, "words")
		version++
		e := domain.Entry{VideoID: id, Visible: true, Version: version, PublishTime: epoch, UpdateTime: epoch, VideoDetails: domain.VideoDetails{
			Title: strings.Join(words, rapid.SampledFrom([]string{" ", "　", "・", ", ", " or ", "-", "'"}).Draw(t, "separator")), Description: anyText(50).Draw(t, "description"),
		}}
		if err := store.PutEntries(t.Context(), catalog, []domain.Entry{e}); err != nil {
			t.Fatalf("PutEntries() = %v", err)
		}
		chosen := []rune(rapid.SampledFrom(words).Draw(t, "word"))
		start := rapid.IntRange(0, len(chosen)-1).Draw(t, "start")
		end := rapid.IntRange(start+1, len(chosen)).Draw(t, "end")
		if isLetters := chosen[0] < 0x0E00; isLetters && end-start < 3 {
			start, end = 0, len(chosen)
			if len(chosen) > 1 {
				end = 2
			}
		}
		for _, words := range []string{string(chosen), string(chosen[start:end]), strings.ToUpper(string(chosen[start:end])), `"` + string(chosen) + `"`, e.Title} {
			matches, _, err := catalog.SearchEntries(t.Context(), domain.SearchQuery{Words: words, Limit: 10})
			if err != nil || len(matches) != 1 {
				t.Fatalf("%q finds %d, %v, want %q", words, len(matches), err, e.Title)
			}
		}
	})
}
