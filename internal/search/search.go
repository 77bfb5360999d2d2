// Package search converts texts and queries to the formats of PostgreSQL's text search, for any language.
//
// It splits and compares text itself, so PostgreSQL needs no extension, no dictionary and no locale. Document returns
// a tsvector as text, and Query a tsquery as text. They match in the same way on every server.
//
// These differences are ignored:
//   - case, width and composition: ﾊﾟﾘ equals パリ;
//   - accents in Latin, Greek, Cyrillic, Arabic and Hebrew: Amélie equals amelie, Kanał equals kanal. In other scripts
//     a mark makes another letter: ガ is not カ.
//
// These texts are found:
//   - A word is a run of letters and digits; all other characters separate words. Its first 64 characters count.
//   - Text in dense scripts, which do not separate words, is found by any part: Chinese, Japanese, Korean (which
//     joins particles to words), Thai, Lao, Khmer, Burmese and Yi.
//   - The words of a Text with Parts are found by any part of three characters or more, and by their first two.
//     Matches of whole words rank first, then beginnings of words. Other parts have no rank.
//   - A query without parts matches only whole words. The caller can rank its matches above those with parts.
//
// There is no stemming, because a stemmer for the wrong language does more harm than none. There is no translation
// (东京 does not find 東京) and no correction of spelling.
//
// Both functions are pure, accept any string, and never return text that PostgreSQL rejects. After a change of this
// package a document changes only when it is written again.
package search

import "strconv"

// Lexemes. A word is its own lexeme. Parts start with a sign that no word contains, so a search for words never reads
// them. "^" precedes the first two characters of a word; "~" precedes the word and each of its suffixes, which are
// searched by prefix. In a dense script each character forms a lexeme with the next one, and the last character of a
// run is a lexeme alone.
const (
	beginning = "^"
	part      = "~"
	minPart   = 3 // characters
)

// Limits of a tsvector (https://www.postgresql.org/docs/current/textsearch-limitations.html). Its text form, which is
// measured here, is never shorter than PostgreSQL's own form.
const (
	maxPosition = 16_383
	maxBytes    = 1 << 20
)

// Text is one text of a document.
type Text struct {
	Words  string
	Weight byte // 'A', 'B' or 'C'; parts of words get 'D'
	Parts  bool // also find its words by their parts
}

// Document returns the text form of a tsvector of some texts, the most important first. A phrase never matches across
// two texts. Text beyond the limits of a tsvector, about 16,000 words or 1 MiB, is left out.
func Document(texts ...Text) string {
	var d document
	for _, text := range texts {
		d.position++ // a gap, so that no phrase spans two texts
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

// document builds a tsvector.
type document struct {
	text     []byte
	position int // of the last word
}

// add adds a lexeme at the current position. With weight 0 it gets no position, so it matches but has no rank.
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

// addParts adds the parts of the word at the current position.
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
