package server

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/scanner"
	"unicode/utf8"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// restriction describes what a filter may require of one field: the operator
// and the kind of value, a token of text/scanner. set applies the value. It
// returns errUnsupported, or an error that names the rule, if it cannot use the
// value.
type restriction struct {
	operator rune // '=', at most once per field; or ':', any number of times
	kind     rune
	set      func(value string) error
}

// errUnsupported reports a filter outside the part of AIP-160 that the API
// supports.
var errUnsupported = errors.New("not supported; it can be restrictions joined by AND")

// parseFilter applies a filter: restrictions joined by AND, the part of AIP-160
// that the API supports. Any other filter is problem.Invalid.
func parseFilter(filter, supported string, fields map[string]restriction) error {
	var tokens scanner.Scanner
	tokens.Init(strings.NewReader(filter))
	tokens.Mode = scanner.ScanIdents | scanner.ScanInts | scanner.ScanStrings
	tokens.Error = func(*scanner.Scanner, string) {} // ErrorCount counts them: NUL, invalid UTF-8, open quotes

	seen := make(map[string]bool, len(fields))
	var err error
	for token := tokens.Scan(); err == nil && token != scanner.EOF; token = tokens.Scan() {
		if len(seen) > 0 {
			if tokens.TokenText() != "AND" {
				err = errUnsupported
				break
			}
			tokens.Scan()
		}
		err = readRestriction(&tokens, fields, seen)
	}
	if tokens.ErrorCount > 0 {
		err = errUnsupported
	}
	if err != nil {
		return problem.InvalidField("filter", "%v: %s", err, supported)
	}
	return nil
}

// readRestriction reads one restriction, whose first token is already scanned.
func readRestriction(tokens *scanner.Scanner, fields map[string]restriction, seen map[string]bool) error {
	name := tokens.TokenText()
	field, known := fields[name]
	if !known || seen[name] && field.operator == '=' || tokens.Scan() != field.operator || tokens.Scan() != field.kind {
		return errUnsupported
	}
	seen[name] = true
	value, err := literal(tokens.TokenText(), field.kind)
	if err != nil {
		return err
	}
	return field.set(value)
}

// literal returns the value of a token. It checks strings again after
// unquoting, because escapes can produce characters that the scanner rejects.
func literal(token string, kind rune) (string, error) {
	if kind != scanner.String {
		return token, nil
	}
	value, err := strconv.Unquote(token)
	if err != nil || value == "" || !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return "", errUnsupported
	}
	if strings.ContainsRune(value, '*') { // in AIP-160 it matches any text
		return "", fmt.Errorf("%s has a wildcard, which is not supported; it can be restrictions joined by AND", token)
	}
	return value, nil
}

// byLanguage returns the restriction of language_code, which sets code.
func byLanguage(code *string) restriction {
	return restriction{'=', scanner.String, func(value string) (err error) {
		if *code, err = canonicalLanguage(value); err != nil {
			return fmt.Errorf("language_code %w; supported are restrictions joined by AND", err)
		}
		return nil
	}}
}

func filterVideos(filter string, query *domain.VideoQuery) error {
	return parseFilter(filter, `state = STATE_DRAFT, language_code = "en"`, map[string]restriction{
		"language_code": byLanguage(&query.LanguageCode),
		"state": {'=', scanner.Ident, func(value string) error {
			query.State = stateByName[value]
			if query.State == "" {
				return errUnsupported
			}
			return nil
		}},
	})
}

func filterEntries(filter string, query *domain.EntryQuery) error {
	return parseFilter(filter, `language_code = "en", release_year = 1994, tags:"drama"`, map[string]restriction{
		"language_code": byLanguage(&query.LanguageCode),
		"release_year": {'=', scanner.Int, func(value string) error {
			year, err := strconv.ParseInt(value, 10, 32)
			query.ReleaseYear = int32(year)
			if err != nil || year <= 0 { // 0 would mean no restriction
				return errUnsupported
			}
			return nil
		}},
		"tags": {':', scanner.String, func(value string) error {
			query.Tags = append(query.Tags, value)
			return nil
		}},
	})
}

func orderVideos(orderBy string, query *domain.VideoQuery) error {
	switch strings.Join(strings.Fields(orderBy), " ") {
	case "", "create_time desc":
		return nil
	case "create_time", "create_time asc":
		query.OldestFirst = true
		return nil
	}
	return problem.InvalidField("order_by", "not supported; it can be: create_time desc, create_time")
}

func orderEntries(orderBy string, query *domain.EntryQuery) error {
	switch strings.Join(strings.Fields(orderBy), " ") {
	case "", "publish_time desc":
		return nil
	case "title", "title asc":
		query.ByTitle = true
		return nil
	}
	return problem.InvalidField("order_by", "not supported; it can be: publish_time desc, title")
}
