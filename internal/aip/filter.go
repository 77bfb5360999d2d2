package aip

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/scanner"
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

// ParseFilter applies a filter: restrictions joined by AND, the part of AIP-160
// that the API supports. Any other filter is problem.Invalid.
func ParseFilter(filter, supported string, fields map[string]Restriction) error {
	var tokens scanner.Scanner
	tokens.Init(strings.NewReader(filter))
	tokens.Mode = scanner.ScanIdents | scanner.ScanInts | scanner.ScanStrings
	tokens.Error = func(*scanner.Scanner, string) {} // ErrorCount counts them: NUL, invalid UTF-8, open quotes

	seen := make(map[string]bool, len(fields))
	var err error
	for token := tokens.Scan(); err == nil && token != scanner.EOF; token = tokens.Scan() {
		if len(seen) > 0 {
			if tokens.TokenText() != "AND" {
				err = ErrUnsupported
				break
			}
			tokens.Scan()
		}
		err = readRestriction(&tokens, fields, seen)
	}
	if tokens.ErrorCount > 0 {
		err = ErrUnsupported
	}
	if err != nil {
		return problem.InvalidField("filter", "%v: %s", err, supported)
	}
	return nil
}

// readRestriction reads one restriction, whose first token is already scanned.
func readRestriction(tokens *scanner.Scanner, fields map[string]Restriction, seen map[string]bool) error {
	name := tokens.TokenText()
	field, known := fields[name]
	if !known || seen[name] && field.Operator == '=' || tokens.Scan() != field.Operator || tokens.Scan() != field.Kind {
		return ErrUnsupported
	}
	seen[name] = true
	value, err := literal(tokens.TokenText(), field.Kind)
	if err != nil {
		return err
	}
	return field.Set(value)
}

// literal returns the value of a token. It checks strings again after
// unquoting, because escapes can produce characters that the scanner rejects.
func literal(token string, kind rune) (string, error) {
	if kind != scanner.String {
		return token, nil
	}
	value, err := strconv.Unquote(token)
	if err != nil || value == "" || !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return "", ErrUnsupported
	}
	if strings.ContainsRune(value, '*') { // in AIP-160 it matches any text
		return "", fmt.Errorf("%s has a wildcard, which is not supported; it can be restrictions joined by AND", token)
	}
	return value, nil
}
