package search

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A document has lexemes of whole words with their weight, and lexemes of parts of words with the lowest weight or
// without a position. A query has the same lexemes.
func TestLexemes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ got, want string }{
		{Document(Text{"Ran!", 'A', true}, Text{"A ran", 'C', false}), `'ran':2A '^ra':2D '~ran':2D 'a':4C 'ran':5C `},
		{Document(Text{"Amélie", 'A', true}), `'amelie':2A '^am':2D '~amelie':2D '~melie' '~elie' '~lie' `},
		{Document(Text{"七人の侍 II", 'A', true}), `'七人':2A '人の':3A 'の侍':4A '侍':5A 'ii':6A '^ii':6D `},
		{Document(Text{"🎬", 'A', true}), ``},
		{Query("Ran", true), `('ran' | '~ran':*)`},
		{Query("a IS", true), `'a' & ('is' | '^is')`},
		{Query("Ran ran", false), `'ran'`},
		{Query("七", true), `('七':*)`},
		{Query("七人の", true), `('七人' <1> '人の')`},
		{Query("七人の侍", true), `('七人' <2> 'の侍')`},
		{Query(`"ran 七人の ran"`, true), `('ran' <1> '七人' <1> '人の' <2> 'ran')`},
		{Query(`king or "b -c" -d -"e f" -g-h`, false), `'king' | ('b' <1> 'c') & !('d') & !(('e' <1> 'f')) & !('g' & 'h')`},
		{Query(`or or or`, false), `'or'`},
		{Query("“ran　１”－x", false), `('ran' <1> '1') & !('x')`},
		{Query(`"ran `, false), `'ran'`},
		{Query("🎬 - \"!\" ' \\", true), ``},
	} {
		if tt.got != tt.want {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
	}
}

// A normal text stays as it is, so words that were found can be searched for again.
func TestNormalTextIsNormal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		once := normalize(rapid.String().Draw(t, "text"))
		if twice := normalize(once); twice != once {
			t.Fatalf("%q, and again %q", once, twice)
		}
	})
}

// No lexeme has a character that PostgreSQL would read as syntax.
func TestLexemesAreLetters(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		for _, p := range split(normalize(rapid.String().Draw(t, "text"))) {
			if word := string(p.runes); word == "" || strings.ContainsAny(word, "'\\^~:* \x00") || len(word) > 2000 && !p.dense {
				t.Fatalf("the word %q", word)
			}
		}
	})
}

// BenchmarkDocument measures what a usual entry costs.
func BenchmarkDocument(b *testing.B) {
	for b.Loop() {
		Document(Text{"Seven Samurai (七人の侍)", 'A', true}, Text{"drama", 'B', false}, Text{strings.Repeat("Villagers hire seven warriors. ", 5), 'C', false})
	}
}
