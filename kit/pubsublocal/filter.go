package pubsublocal

import (
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const maxFilter = 256 // bytes; it also limits the recursion of the parser

// filter reports whether a message with these attributes is for a subscription
// (E3). The nil filter accepts every message.
type filter func(attributes map[string]string) bool

func (f filter) match(attributes map[string]string) bool { return f == nil || f(attributes) }

// parseFilter parses a filter:
//
//	filter     = term { "AND" term } | term { "OR" term }
//	term       = comparison | ( "NOT" | "-" ) term | "(" filter ")"
//	comparison = "attributes" ":" key
//	           | "attributes" "." key ( "=" | "!=" ) literal
//	           | "hasPrefix" "(" "attributes" "." key "," literal ")"
//	key        = literal | letters, digits, "_" and "-"
//	literal    = a string in double quotes, with escapes
//
// The empty text gives the nil filter. A text that is too long or not valid is
// INVALID_ARGUMENT (E1, E2).
func parseFilter(text string) (filter, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxFilter {
		return nil, status.Errorf(codes.InvalidArgument, "The filter is too long. The length is %d bytes, but the maximum allowed is %d.",
			len(text), maxFilter)
	}
	p := &filterParser{text: text}
	f, err := p.filter()
	if err == nil && !p.atEnd() {
		err = p.expected("AND, OR or the end")
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

type filterParser struct {
	text string
	pos  int
}

func (p *filterParser) filter() (filter, error) {
	first, err := p.term()
	if err != nil {
		return nil, err
	}
	terms, operator := []filter{first}, ""
	for {
		switch {
		case operator != "OR" && p.takeWord("AND"):
			operator = "AND"
		case operator != "AND" && p.takeWord("OR"):
			operator = "OR"
		case operator == "OR": // if an AND follows, the caller returns the error: E12
			return anyOf(terms), nil
		default:
			return allOf(terms), nil
		}
		next, err := p.term()
		if err != nil {
			return nil, err
		}
		terms = append(terms, next)
	}
}

func allOf(terms []filter) filter {
	return func(attributes map[string]string) bool {
		for _, term := range terms {
			if !term(attributes) {
				return false
			}
		}
		return true
	}
}

func anyOf(terms []filter) filter {
	return func(attributes map[string]string) bool {
		for _, term := range terms {
			if term(attributes) {
				return true
			}
		}
		return false
	}
}

func (p *filterParser) term() (filter, error) {
	switch {
	case p.take("-"), p.takeWord("NOT"): // E11
		f, err := p.term()
		if err != nil {
			return nil, err
		}
		return func(attributes map[string]string) bool { return !f(attributes) }, nil
	case p.take("("):
		f, err := p.filter()
		if err == nil && !p.take(")") {
			err = p.expected("AND, OR or )")
		}
		return f, err
	case p.takeWord("hasPrefix"):
		return p.hasPrefix()
	case p.takeWord("attributes"):
		return p.attributes()
	default: // E9, E10, E15
		return nil, p.expected("attributes, hasPrefix, NOT, - or (")
	}
}

// attributes parses the rest of a comparison after the word attributes.
func (p *filterParser) attributes() (filter, error) {
	start := p.pos
	if p.take(":") { // E5
		key, err := p.key()
		return func(attributes map[string]string) bool {
			_, ok := attributes[key]
			return ok
		}, err
	}
	p.pos = start
	key, err := p.member()
	if err != nil {
		return nil, err
	}
	switch {
	case p.take("="): // E6
		want, err := p.literal()
		return func(attributes map[string]string) bool {
			got, ok := attributes[key]
			return ok && got == want
		}, err
	case p.take("!="): // E7
		unwanted, err := p.literal()
		return func(attributes map[string]string) bool {
			got, ok := attributes[key]
			return !ok || got != unwanted
		}, err
	default:
		return nil, p.expected("= or !=")
	}
}

// hasPrefix parses the rest of a comparison after the word hasPrefix (E8, E9).
func (p *filterParser) hasPrefix() (filter, error) {
	if !p.take("(") {
		return nil, p.expected("(")
	}
	if !p.takeWord("attributes") {
		return nil, p.expected("attributes")
	}
	key, err := p.member()
	if err != nil {
		return nil, err
	}
	if !p.take(",") {
		return nil, p.expected(",")
	}
	prefix, err := p.literal()
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, p.expected(")")
	}
	return func(attributes map[string]string) bool {
		got, ok := attributes[key]
		return ok && strings.HasPrefix(got, prefix)
	}, nil
}

// member parses a dot and a key. No space is allowed before or after the dot.
func (p *filterParser) member() (string, error) {
	if !strings.HasPrefix(p.text[p.pos:], ".") {
		return "", p.expected(". and a key")
	}
	p.pos++
	if p.pos < len(p.text) && isFilterSpace(p.text[p.pos]) {
		return "", p.expected("a key")
	}
	return p.key()
}

// key parses a key. A key with other characters than these must be in quotes
// (E13).
func (p *filterParser) key() (string, error) {
	p.skipSpace()
	end := p.pos
	for end < len(p.text) && (isWordByte(p.text[end]) || p.text[end] == '-') {
		end++
	}
	if end == p.pos {
		return p.literal()
	}
	key := p.text[p.pos:end]
	p.pos = end
	return key, nil
}

// literal parses a string in double quotes, with the escapes of a Go string
// (E14).
func (p *filterParser) literal() (string, error) {
	if !p.take(`"`) {
		return "", p.expected("a string in double quotes")
	}
	var value []byte
	for p.pos < len(p.text) {
		if p.text[p.pos] == '"' {
			p.pos++
			return string(value), nil
		}
		r, isRune, rest, err := strconv.UnquoteChar(p.text[p.pos:], '"')
		switch {
		case err != nil:
			return "", p.expected("an escape sequence")
		case isRune:
			value = append(value, string(r)...)
		default: // \xXX and octal escapes are bytes
			value = append(value, byte(r&0xff))
		}
		p.pos = len(p.text) - len(rest)
	}
	return "", p.expected(`"`)
}

// take skips space and consumes symbol if it is next.
func (p *filterParser) take(symbol string) bool {
	p.skipSpace()
	if !strings.HasPrefix(p.text[p.pos:], symbol) {
		return false
	}
	p.pos += len(symbol)
	return true
}

// takeWord consumes word if it is the whole next word: ORDER does not match OR.
func (p *filterParser) takeWord(word string) bool {
	start := p.pos
	if p.take(word) && (p.pos == len(p.text) || !isWordByte(p.text[p.pos])) {
		return true
	}
	p.pos = start
	return false
}

func (p *filterParser) atEnd() bool {
	p.skipSpace()
	return p.pos == len(p.text)
}

func (p *filterParser) skipSpace() {
	for p.pos < len(p.text) && isFilterSpace(p.text[p.pos]) {
		p.pos++
	}
}

func (p *filterParser) expected(what string) error {
	return status.Errorf(codes.InvalidArgument, "The filter does not parse at byte %d: expected %s. You passed %q.", p.pos, what, p.text)
}

func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}
func isFilterSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }
