package search

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// accented are the scripts whose letters are alike with marks and without.
var accented = []*unicode.RangeTable{unicode.Latin, unicode.Greek, unicode.Cyrillic, unicode.Arabic, unicode.Hebrew}

// dense are the scripts that do not separate words.
var dense = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Bopomofo, unicode.Hangul, unicode.Yi,
	unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar,
}

// invisible is what must not make a difference, such as joiners and the variants of a character.
var invisible = []*unicode.RangeTable{unicode.Cf, unicode.Variation_Selector}

// plain writes the Latin letters that are not made of a letter and a mark as people without the key type them, and
// the quotes of a phrase as Query reads them.
var plain = strings.NewReplacer("ß", "ss", "æ", "ae", "œ", "oe", "ø", "o", "ł", "l", "đ", "d", "ð", "d", "þ", "th", "ħ", "h", "ŧ", "t", "“", `"`, "”", `"`)

// normalize writes what is alike in one way. A normal text stays as it is. Two letters that are one in another case,
// such as σ and ς, are alike, so capitals come first.
func normalize(text string) string {
	var b strings.Builder
	alike := false // the last letter has no marks that count
	for _, r := range norm.NFKD.String(text) {
		switch {
		case r < 0x80:
			alike = true
		case unicode.In(r, invisible...), alike && unicode.Is(unicode.Mn, r):
			continue
		case !unicode.Is(unicode.Mn, r):
			alike = unicode.In(r, accented...)
		}
		b.WriteRune(r)
	}
	return norm.NFKC.String(plain.Replace(strings.ToLower(strings.ToUpper(b.String()))))
}

// piece is a word, or a run of characters of dense scripts.
type piece struct {
	runes []rune
	dense bool
}

// split returns the pieces of a normal text.
func split(text string) []piece {
	const maxWord = 64 // characters
	var pieces []piece
	inside := false // the last rune was part of a piece
	for _, r := range text {
		mark := unicode.IsMark(r)
		if !(mark && inside) && !unicode.IsLetter(r) && !unicode.IsNumber(r) {
			inside = false
			continue
		}
		isDense := r >= 0x0E00 && unicode.In(r, dense...) || r == 'ー' // 0x0E00: Thai is the first of them
		if n := len(pieces) - 1; inside && (mark || pieces[n].dense == isDense) {
			if pieces[n].dense || len(pieces[n].runes) < maxWord {
				pieces[n].runes = append(pieces[n].runes, r)
			}
			continue
		}
		pieces = append(pieces, piece{runes: []rune{r}, dense: isDense})
		inside = true
	}
	return pieces
}

// length is how many positions a piece has.
func (p piece) length() int {
	if p.dense {
		return len(p.runes)
	}
	return 1
}

// lexeme is the one at a position of a piece.
func (p piece) lexeme(i int) string {
	if p.dense {
		return string(p.runes[i:min(i+2, len(p.runes))])
	}
	return string(p.runes)
}
