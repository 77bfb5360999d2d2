package server

import (
	"strconv"
	"strings"
	"text/scanner"
	"unicode/utf8"

	"example.com/videocatalog/internal/domain"
)

// restriction is what a filter may say about one field: which operator, which
// kind of value (of text/scanner), and what it means. set answers whether it
// can take the value.
type restriction struct {
	operator rune // '=', at most once per field; or ':', any number of times
	kind     rune
	set      func(value string) bool
}

// parseFilter reads the part of AIP-160 that the API promises: restrictions
// joined by AND. All else is Invalid.
func parseFilter(filter, supported string, fields map[string]restriction) error {
	var tokens scanner.Scanner
	tokens.Init(strings.NewReader(filter))
	tokens.Mode = scanner.ScanIdents | scanner.ScanInts | scanner.ScanStrings
	tokens.Error = func(*scanner.Scanner, string) {} // counted: NUL, what is no UTF-8, open quotes

	seen := make(map[string]bool, len(fields))
	ok := true
	for token := tokens.Scan(); ok && token != scanner.EOF; token = tokens.Scan() {
		if len(seen) > 0 {
			ok = tokens.TokenText() == "AND"
			tokens.Scan()
		}
		ok = ok && readRestriction(&tokens, fields, seen)
	}
	if !ok || tokens.ErrorCount > 0 {
		return domain.InvalidField("filter", "not supported; it can be restrictions joined by AND: %s", supported)
	}
	return nil
}

// readRestriction reads one, whose first token has been scanned.
func readRestriction(tokens *scanner.Scanner, fields map[string]restriction, seen map[string]bool) bool {
	name := tokens.TokenText()
	field, known := fields[name]
	if !known || seen[name] && field.operator == '=' || tokens.Scan() != field.operator || tokens.Scan() != field.kind {
		return false
	}
	seen[name] = true
	value, ok := literal(tokens.TokenText(), field.kind)
	return ok && field.set(value)
}

// literal answers the value of a token. The escapes of a string can make what
// the scanner would have refused.
func literal(token string, kind rune) (string, bool) {
	if kind != scanner.String {
		return token, true
	}
	value, err := strconv.Unquote(token)
	return value, err == nil && value != "" && utf8.ValidString(value) && !strings.ContainsRune(value, 0)
}

func filterVideos(filter string, query *domain.VideoQuery) error {
	return parseFilter(filter, `state = STATE_DRAFT, language_code = "en"`, map[string]restriction{
		"state": {'=', scanner.Ident, func(value string) bool {
			query.State = stateByName[value]
			return query.State != ""
		}},
		"language_code": {'=', scanner.String, func(value string) bool {
			query.LanguageCode = value
			return true
		}},
	})
}

func filterEntries(filter string, query *domain.EntryQuery) error {
	return parseFilter(filter, `language_code = "en", release_year = 1994, tags:"drama"`, map[string]restriction{
		"language_code": {'=', scanner.String, func(value string) bool {
			query.LanguageCode = value
			return true
		}},
		"release_year": {'=', scanner.Int, func(value string) bool {
			year, err := strconv.ParseInt(value, 10, 32)
			query.ReleaseYear = int32(year)
			return err == nil && year > 0 // 0 would be no restriction
		}},
		"tags": {':', scanner.String, func(value string) bool {
			query.Tags = append(query.Tags, value)
			return true
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
	return domain.InvalidField("order_by", "not supported; it can be: create_time desc, create_time")
}

func orderEntries(orderBy string, query *domain.EntryQuery) error {
	switch strings.Join(strings.Fields(orderBy), " ") {
	case "", "publish_time desc":
		return nil
	case "title", "title asc":
		query.ByTitle = true
		return nil
	}
	return domain.InvalidField("order_by", "not supported; it can be: publish_time desc, title")
}
