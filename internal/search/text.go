package search

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// accented are the scripts in which marks on letters are ignored.
var accented = []*unicode.RangeTable{unicode.Latin, unicode.Greek, unicode.Cyrillic, unicode.Arabic, unicode.Hebrew}

// dense are the scripts that do not separate words.
var dense = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Bopomofo, unicode.Hangul, unicode.Yi,
	unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar,
}

// invisible are characters that are ignored, such as joiners and variation selectors.
var invisible = []*unicode.RangeTable{unicode.Cf, unicode.Variation_Selector}

// plain replaces Latin letters that have no decomposition by what people type without the key, and typographic quotes
// by those that Query reads.
var plain = strings.NewReplacer("ß", "ss", "æ", "ae", "œ", "oe", "ø", "o", "ł", "l", "đ", "d", "ð", "d", "þ", "th", "ħ", "h", "ŧ", "t", "“", `"`, "”", `"`)

// normalize maps texts that count as equal to one text. A normalized text stays unchanged. Upper case comes first,
// because letters such as σ and ς have one capital and must become equal.
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

// piece is a word, or a run of characters in dense scripts.
type piece struct {
	runes []rune
	dense bool
}

// split returns the pieces of a normalized text.
func split(text string) []piece {
	const maxWord = 64 // characters
	var pieces []piece
	inside := false // the previous rune belongs to a piece
	for _, r := range text {
		mark := unicode.IsMark(r)
		if !(mark && inside) && !unicode.IsLetter(r) && !unicode.IsNumber(r) {
			inside = false
			continue
		}
		isDense := r >= 0x0E00 && unicode.In(r, dense...) || r == 'ー' // 0x0E00: Thai, the first dense script
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

// length returns how many positions of a tsvector a piece takes.
func (p piece) length() int {
	if p.dense {
		return len(p.runes)
	}
	return 1
}

// lexeme returns the lexeme at a position of a piece.
func (p piece) lexeme(i int) string {
	if p.dense {
		return string(p.runes[i:min(i+2, len(p.runes))])
	}
	return string(p.runes)
}
