package server

import (
	"fmt"
	"strconv"
	"strings"
	"text/scanner"

	"golang.org/x/text/language"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// canonicalize makes the language code of a video canonical.
func canonicalize(v *videov1.Video) error {
	code := v.GetLanguageCode()
	if code == "" {
		return nil
	}
	code, err := canonicalLanguage(code)
	if err != nil {
		return problem.InvalidField("video.language_code", "%v", err)
	}
	v.LanguageCode = code
	return nil
}

// canonicalLanguage returns a language tag in the canonical form of BCP 47, so
// that the database has one value per language.
func canonicalLanguage(code string) (string, error) {
	tag, err := language.Parse(code)
	if err != nil {
		return "", fmt.Errorf("must be a BCP 47 tag such as en or pt-BR, and %q is none: %w", code, err)
	}
	return tag.String(), nil
}

// byLanguage returns the restriction of language_code, which sets code.
func byLanguage(code *string) aip.Restriction {
	return aip.Restriction{Operator: '=', Kind: scanner.String, Set: func(value string) (err error) {
		if *code, err = canonicalLanguage(value); err != nil {
			return fmt.Errorf("language_code %w; supported are restrictions joined by AND", err)
		}
		return nil
	}}
}

func filterVideos(filter string, query *domain.VideoQuery) error {
	return aip.ParseFilter(filter, `state = STATE_DRAFT, language_code = "en"`, map[string]aip.Restriction{
		"language_code": byLanguage(&query.LanguageCode),
		"state": {Operator: '=', Kind: scanner.Ident, Set: func(value string) (err error) {
			query.State, err = videoStateOf(value)
			return err
		}},
	})
}

func filterEntries(filter string, query *domain.EntryQuery) error {
	return aip.ParseFilter(filter, `language_code = "en", release_year = 1994, tags:"drama"`, map[string]aip.Restriction{
		"language_code": byLanguage(&query.LanguageCode),
		"release_year": {Operator: '=', Kind: scanner.Int, Set: func(value string) error {
			year, err := strconv.ParseInt(value, 10, 32)
			query.ReleaseYear = int32(year)
			if err != nil || year <= 0 { // 0 would mean no restriction
				return aip.ErrUnsupported
			}
			return nil
		}},
		"tags": {Operator: ':', Kind: scanner.String, Set: func(value string) error {
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
