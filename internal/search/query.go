package search

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Query returns the text form of a tsquery for a web search. All words must match, `or` separates alternatives, -word
// excludes, and quotes make a phrase. With parts, a word outside phrases and exclusions also matches as part of a
// word. The result is empty if words has no letter and no digit.
func Query(words string, parts bool) string {
	var alternatives, wanted []string
	tokens := token.FindAllString(normalize(words), -1)
	for i, token := range tokens {
		if token == "or" && i > 0 && i < len(tokens)-1 {
			alternatives = appendNew(alternatives, strings.Join(wanted, " & "))
			wanted = nil
			continue
		}
		wanted = appendNew(wanted, term(token, parts))
	}
	return strings.Join(appendNew(alternatives, strings.Join(wanted, " & ")), " | ")
}

// token matches a phrase or a word.
var token = regexp.MustCompile(`-*"[^"]*"|[^\s"]+`)

// appendNew appends s unless it is empty or already in the list.
func appendNew(list []string, s string) []string {
	if s == "" || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// term returns the tsquery of a token, or "" if it has no letter and no digit.
func term(token string, parts bool) string {
	text := strings.TrimLeft(token, "-")
	unwanted, quoted := text != token, strings.HasPrefix(text, `"`)
	found := split(text)
	all := phrase(found)
	if !quoted {
		var terms []string
		for _, p := range found {
			terms = appendNew(terms, p.query(parts && !unwanted))
		}
		all = strings.Join(terms, " & ")
	}
	if unwanted && all != "" {
		return "!(" + all + ")"
	}
	return all
}

// query returns the tsquery of a piece. With parts it also matches parts of words.
func (p piece) query(parts bool) string {
	word := quote(string(p.runes))
	switch {
	case p.dense:
		return phrase([]piece{p})
	case parts && len(p.runes) >= minPart:
		return "(" + word + " | " + quote(part+string(p.runes)) + ":*)"
	case parts && len(p.runes) == 2:
		return "(" + word + " | " + quote(beginning+string(p.runes)) + ")"
	}
	return word
}

// phrase returns the tsquery of adjacent pieces. In a dense run the lexemes overlap, so every second one is enough,
// plus the one that ends with the last character.
func phrase(pieces []piece) string {
	var b strings.Builder
	distance := 0 // from the previous lexeme
	for _, p := range pieces {
		for i := range p.length() {
			distance++
			if last := p.length() - 2; i > max(last, 0) || i < last && i%2 == 1 {
				continue
			}
			if b.Len() > 0 {
				b.WriteString(" <" + strconv.Itoa(distance) + "> ")
			}
			distance = 0
			b.WriteString(quote(p.lexeme(i)))
			if p.dense && p.length() == 1 {
				b.WriteString(":*") // any character may follow in the document
			}
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "(" + b.String() + ")"
}

func quote(lexeme string) string { return "'" + lexeme + "'" }
