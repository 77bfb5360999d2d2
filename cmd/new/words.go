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

// kind is the kind of a text. It determines how a name of several words is written.
type kind int

const (
	code   kind = iota // purchase_order: SQL, proto, shell, names of files
	golang             // purchaseOrder: identifiers of Go
	prose              // purchase order: comments and pages
	text               // strings and YAML: the neighbors of the name determine its form
)

// untouched are words of PostgreSQL and others that only look like words of the example.
const untouched = `pg_catalog|catalog_xmin|current_catalog|information_schema_catalog_name|` +
	`\b(?:catalog|table|schema|constraint|domain|udt|trigger|specific|routine|view|sequence|character_set|collation|event_object)_catalog\b|` +
	`\bcatalog_name\b|(?i:system\s+catalogs?|PostgreSQL's\s+catalogs?)`

// example matches the words of the example.
const example = `[Vv]ideos?|VIDEOS?|[Ff]ilms?|FILMS?|[Cc]atalogs?|CATALOGS?`

// replace returns the new service's word for the word of the example at source[at[0]:at[1]]. It
// returns false if that word is part of a longer one.
func (w words) replace(source string, at []int, k kind) (string, bool) {
	old := source[at[0]:at[1]]
	left, right := source[max(0, at[0]-nearby):at[0]], source[at[1]:]
	if k == text && escape.MatchString(left) {
		left = left[:len(left)-2] + " "
	}
	before, _ := utf8.DecodeLastRuneInString(left)
	after, _ := utf8.DecodeRuneInString(right)
	squashed := k != prose && version.MatchString(right)
	isCapital := old[0] < 'a'
	switch {
	case !squashed && unicode.IsLower(after), !isCapital && isLetter(before), old[1] < 'a' && isLetter(after):
		return "", false
	}
	lower := strings.ToLower(old)
	isPlural := strings.HasSuffix(lower, "s")
	name := w.entity
	switch {
	case strings.HasPrefix(lower, "catalog") && isPlural:
		name = naming.Plural(view)
	case strings.HasPrefix(lower, "catalog"):
		name = view
	case isPlural:
		name = w.plural
	}
	switch {
	case old[1] < 'a':
		return strings.ToUpper(name), true
	case isCapital && k == prose && startsSentence(left, right):
		return capital(strings.ReplaceAll(name, "_", " ")), true
	case isCapital:
		return pascal(name), true
	case squashed:
		return strings.ReplaceAll(name, "_", ""), true
	}
	return write(name, formOf(left, right, k, isPlural)), true
}

// nearby is the number of bytes before a word that determine its form.
const nearby = 80

// escape matches the escape sequence of a tab or of a line end, at the end of a text.
var escape = regexp.MustCompile(`[^\\](?:\\\\)*\\[tnr]$`)

// version matches the version in the name of a Go package that protobuf generates: the v1 of
// videov1.
var version = regexp.MustCompile(`^v[0-9]`)

// form is how the parts of a name are joined.
type form int

const (
	snake form = iota // purchase_order
	kebab             // purchase-order
	camel             // purchaseOrder
	plain             // purchase order
)

func write(name string, f form) string {
	switch f {
	case kebab:
		return strings.ReplaceAll(name, "_", "-")
	case camel:
		p := pascal(name)
		return strings.ToLower(p[:1]) + p[1:]
	case plain:
		return strings.ReplaceAll(name, "_", " ")
	default:
		return name
	}
}

// formOf returns the form of a word in lower case by what is around it.
func formOf(before, after string, k kind, isPlural bool) form {
	next, _ := utf8.DecodeRuneInString(after)
	switch {
	case strings.HasSuffix(before, "_"), strings.HasPrefix(after, "_"):
		return snake
	case k == golang, strings.HasSuffix(before, "\n\n// ") && isDoc.MatchString(after):
		return camel
	case strings.HasSuffix(before, "-") && !strings.HasSuffix(before, "--"), strings.HasPrefix(after, "-"):
		return kebab
	case strings.HasPrefix(after, " ID"), sqlBefore.MatchString(before): // an argument of a command, a table
		return snake
	case strings.HasPrefix(after, ".events"), strings.HasPrefix(after, ".example.com"): // the topic, a host
		return kebab
	case unicode.IsUpper(next), field.MatchString(after): // videoID, video.releaseYear in JSON
		return camel
	case strings.HasSuffix(before, `"`) && inJSON.MatchString(after): // a field of JSON
		return camel
	case isFile.MatchString(after):
		return snake
	case isPlural && (strings.HasSuffix(before, "/") || strings.HasPrefix(after, "/")): // a collection, as in videos/ID
		return camel
	case k != code && strings.HasPrefix(after, "("): // a function of Go
		return camel
	case isCollection.MatchString(before), isPlural && isQuoted.MatchString(before) && strings.HasPrefix(after, `"`): // also in a URL
		return camel
	case k == code, k == text && isScalar.MatchString(before) && strings.HasPrefix(after, "\n"):
		return snake
	case isProse(before, after):
		return plain
	}
	return snake
}

var (
	field        = regexp.MustCompile(`^\.[a-z]+[A-Z]`)
	isDoc        = regexp.MustCompile(`^ [^\n]*\n(//[^\n]*\n)*(func|type|var|const) (video|catalog|film)s?\b`)
	inJSON       = regexp.MustCompile(`^\\?":`)
	isFile       = regexp.MustCompile(`^\.[a-z]`)
	isCollection = regexp.MustCompile(`((singular|plural): "|/v1/\w+/\{)$`)
	isQuoted     = regexp.MustCompile(`[^=\\]"$`)
	sqlBefore    = regexp.MustCompile(`\b(FROM|INTO|TO|TABLE|UPDATE|JOIN|ON) $`)
	isScalar     = regexp.MustCompile(`(?m)(^|[-:]) +$`) // of YAML
)

// isProse reports whether a word is between others: it has a space at one side at least, and
// the end of a sentence or of a string at the other.
func isProse(before, after string) bool {
	b, _ := utf8.DecodeLastRuneInString(before)
	a, _ := utf8.DecodeRuneInString(after)
	isSpace := func(r rune) bool {
		return r == ' ' || r == '\t' || r == '\n' || r > unicode.MaxASCII && r != utf8.RuneError
	}
	starts := isSpace(b) || b == utf8.RuneError || strings.ContainsRune("('\"`*[>", b)
	ends := isSpace(a) || a == utf8.RuneError || strings.ContainsRune("\\,;:.!?)'\"`*]<", a)
	return starts && ends && (isSpace(b) || isSpace(a))
}

// startsSentence reports whether a word with a capital is the first of a sentence, and no
// identifier.
func startsSentence(before, after string) bool {
	return sentence.MatchString(before) && strings.HasPrefix(after, " ")
}

var sentence = regexp.MustCompile(`(?:\n|[.:|>*-] |# )$`)

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
		b.WriteString(capital(part))
	}
	return b.String()
}

func capital(word string) string {
	if word == "" {
		return ""
	}
	return strings.ToUpper(word[:1]) + word[1:]
}

func isLetter(r rune) bool {
	return r != utf8.RuneError && r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r))
}
