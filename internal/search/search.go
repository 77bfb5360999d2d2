// Package search writes texts and queries as PostgreSQL's text search takes them, for any language.
//
// It splits and compares text itself, so PostgreSQL needs no extension, no dictionary, and no locale: Document is the
// text form of a tsvector, Query that of a tsquery, and one matches the other on every server alike.
//
// What is alike:
//   - Letters in any case and width, and composed or not: ﾊﾟﾘ is パリ.
//   - Letters with accents and without: Amélie is amelie, Kanał is kanal. This holds for Latin, Greek, Cyrillic, Arabic
//     and Hebrew. Elsewhere a mark makes another letter: ガ is not カ.
//
// What is found:
//   - A word is a run of letters and digits, and everything else separates words. Its first 64 characters count.
//   - Text in dense scripts, which do not separate words, is found by any part: Chinese, Japanese, Korean (which
//     joins particles to words), Thai, Lao, Khmer, Burmese and Yi.
//   - The words of a text with Parts are found by any part of three characters or more, and by their first two.
//     Whole words come first: a query of them finds less, and what it finds ranks above the rest. Then come the
//     beginnings of words, and last the other parts, which have no rank.
//
// What it does not do: no stemming, because the stemmer of another language hurts more than none. No translation:
// 东京 does not find 東京. No correction of mistakes.
//
// Both functions are pure, take any string, and never return what PostgreSQL refuses. A change here takes effect for a
// document when it is written again.
package search

import "strconv"

// The lexemes. A word is one itself. Parts have a sign in front, which no word has, so that a search for words never
// reads them: ^ is before the first two characters of a word, ~ before the word and before each of its ends, which
// are searched by prefix. In a dense script each character makes a lexeme with the one behind it, and the last of a
// run makes one alone.
const (
	beginning = "^"
	part      = "~"
	minPart   = 3 // characters
)

// The limits of a tsvector (https://www.postgresql.org/docs/current/textsearch-limitations.html). Its text form is
// never shorter than what PostgreSQL makes of it.
const (
	maxPosition = 16_383
	maxBytes    = 1 << 20
)

// Text is one text of a document.
type Text struct {
	Words  string
	Weight byte // 'A', 'B' or 'C'; parts of words have 'D'
	Parts  bool // its words are found by their parts too
}

// Document returns the text form of a tsvector of some texts, the most important one first. A phrase never spans two
// texts. What is behind the limits of a tsvector, some 16,000 words or a megabyte, is left out.
func Document(texts ...Text) string {
	var d document
	for _, text := range texts {
		d.position++ // a gap
		for _, p := range split(normalize(text.Words)) {
			for i := range p.length() {
				d.position++
				d.add(p.lexeme(i), text.Weight)
			}
			if text.Parts && !p.dense {
				d.addParts(p.runes)
			}
			if d.position >= maxPosition || len(d.text) >= maxBytes {
				return string(d.text)
			}
		}
	}
	return string(d.text)
}

// document is a tsvector in the making.
type document struct {
	text     []byte
	position int // of the last word
}

// add adds a lexeme at the position. One without weight gets no position: it matches, and has no rank.
func (d *document) add(lexeme string, weight byte) {
	const most = len("'':16383A ")
	if len(d.text)+len(lexeme)+most > maxBytes || d.position >= maxPosition {
		return
	}
	d.text = append(d.text, '\'')
	d.text = append(d.text, lexeme...)
	d.text = append(d.text, '\'')
	if weight != 0 {
		d.text = append(d.text, ':')
		d.text = strconv.AppendInt(d.text, int64(d.position), 10)
		d.text = append(d.text, weight)
	}
	d.text = append(d.text, ' ')
}

// addParts adds the parts of the word at the position.
func (d *document) addParts(word []rune) {
	if len(word) >= 2 {
		d.add(beginning+string(word[:2]), 'D')
	}
	for start := 0; len(word)-start >= minPart; start++ {
		weight := byte('D')
		if start > 0 {
			weight = 0
		}
		d.add(part+string(word[start:]), weight)
	}
}
