package aip

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/scanner"
	"unicode"
	"unicode/utf8"

	"example.com/videocatalog/internal/problem"
)

// Restriction describes what a filter may require of one field: the operator
// and the kind of value, a token of text/scanner. Set applies the value. If Set
// cannot use the value, it returns ErrUnsupported, or an error that names the
// rule.
type Restriction struct {
	Operator rune // '=', at most once per field; or ':', any number of times
	Kind     rune
	Set      func(value string) error
}

// ErrUnsupported reports a filter outside the part of AIP-160 that the API
// supports.
var ErrUnsupported = errors.New("not supported; it can be restrictions joined by AND")

// restriction matches a restriction at the start of a filter, and the AND after it.
var restriction = regexp.MustCompile(`^\s*(\w+)\s*([=:])\s*("(?:[^"\\\n]|\\.)*"|\w+)\s*(AND\b|$)`)

// ParseFilter applies a filter: restrictions joined by AND, the part of AIP-160
// that the API supports. Any other filter is problem.Invalid.
func ParseFilter(filter, supported string, fields map[string]Restriction) error {
	seen := make(map[string]bool, len(fields))
	for rest, more := filter, strings.TrimSpace(filter) != ""; more; {
		err := ErrUnsupported
		match := restriction.FindStringSubmatch(rest)
		if match != nil && (match[2] == ":" || !seen[match[1]]) {
			err = fields[match[1]].apply(match[2], match[3])
		}
		if err != nil {
			return problem.InvalidField("filter", "%v: %s", err, supported)
		}
		seen[match[1]], rest, more = true, rest[len(match[0]):], match[4] != ""
	}
	return nil
}

// apply sets the value of a token, if the restriction has this operator and kind. The zero
// Restriction has no operator.
func (r Restriction) apply(operator, token string) (err error) {
	kind, value := rune(scanner.Ident), token
	if token[0] == '"' {
		kind = scanner.String
		value, err = strconv.Unquote(token)
	} else if unicode.IsDigit(rune(token[0])) {
		kind = scanner.Int
	}
	// Escapes can produce bytes that are no text, and characters that the database does not store.
	if err != nil || operator != string(r.Operator) || kind != r.Kind || value == "" || !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return ErrUnsupported
	}
	if strings.ContainsRune(value, '*') { // in AIP-160 it matches any text
		return fmt.Errorf("%s has a wildcard, which is not supported; it can be restrictions joined by AND", token)
	}
	return r.Set(value)
}
