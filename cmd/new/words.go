package main

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"example.com/servicekit/naming"
)

// The topic of the template, and the subscription of its catalog.
const (
	exampleTopic        = "video.events"
	exampleSubscription = exampleTopic + ".catalog"
)

// words replace the words of the example in the new service. They must not be empty.
type words struct {
	entity, plural string
}

// untouched are words of PostgreSQL that only look like words of the example.
const untouched = `pg_catalog|catalog_xmin`

// example matches the words of the example.
const example = `[Vv]ideos?|VIDEOS?|[Ff]ilms?|FILMS?|[Cc]atalogs?|CATALOGS?`

// replace returns the new service's word for a word of the example, in the form that its place needs. It
// returns false if the word is part of a longer one.
func (w words) replace(old, before, after string, inCode bool) (string, bool) {
	last, _ := utf8.DecodeLastRuneInString(before)
	next, _ := utf8.DecodeRuneInString(after)
	isCapital, isUpper := old[0] < 'a', old[1] < 'a'
	if unicode.IsLower(next) || !isCapital && unicode.IsLetter(last) || isUpper && unicode.IsLetter(next) {
		return "", false
	}
	lower := strings.ToLower(old)
	name := w.entity
	switch {
	case strings.HasPrefix(lower, "catalog"):
		name = view
	case strings.HasSuffix(lower, "s"):
		name = w.plural
	}
	switch {
	case isUpper:
		return strings.ToUpper(name), true
	case isCapital:
		return pascal(name), true
	case strings.HasSuffix(before, "/v1/") && !strings.HasPrefix(after, "_"): // a collection, no file
		return camel(name), true
	case inCode || strings.HasSuffix(before, "/") || strings.HasSuffix(before, "_") || inPath.MatchString(after):
		return name, true
	}
	return plain(name), true
}

// inPath matches what follows a word in a path, or in an identifier of SQL.
var inPath = regexp.MustCompile(`^([/_]|\.[a-z])`)

// codeOf matches the examples and the spans of code of a page.
var codeOf = regexp.MustCompile("(?s)```.*?\n```|`[^`\n]+`")

// kebab returns purchase-order for purchase_order.
func kebab(name string) string { return strings.ReplaceAll(name, "_", "-") }

// plain returns purchase order for purchase_order.
func plain(name string) string { return strings.ReplaceAll(name, "_", " ") }

// camel returns purchaseOrder for purchase_order.
func camel(name string) string { return name[:1] + pascal(name)[1:] }

// article matches the indefinite article before a word, also at the end of a line of a
// comment.
var article = regexp.MustCompile("(?:^|[^A-Za-z0-9_'.])[Aa](?:[\\s\"`*_(]|//|#|--)*$")

// withArticle returns the text before a word with the article that the word needs.
func withArticle(before, word string) string {
	if !naming.StartsWithVowel(word) {
		return before
	}
	found := article.FindStringIndex(before)
	if found == nil {
		return before
	}
	end := found[0] + strings.IndexAny(before[found[0]:], "Aa") + 1
	if end == len(before) {
		return before
	}
	return before[:end] + "n" + before[end:]
}

func pascal(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}
