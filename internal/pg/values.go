package pg

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// This file has the values of Go as columns, and back.

// Optional returns nil, which is NULL, for a zero value.
func Optional[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// NotNil returns an empty slice for nil, so that it is written as an empty
// array and not as NULL.
func NotNil[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// ValueOf returns the zero value for nil, which is NULL.
func ValueOf[T any](value *T) T {
	if value == nil {
		var zero T
		return zero
	}
	return *value
}

// TimeOf returns a time in UTC, and the zero time for nil.
func TimeOf(t *time.Time) time.Time { return ValueOf(t).UTC() }

// Limit returns n as the LIMIT of a query, at most the largest.
func Limit(n int) int32 { return int32(min(n, math.MaxInt32)) } //nolint:gosec // just checked

// MapSlice returns f of each element, such as the values of the rows of a query.
func MapSlice[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

// EndOfTime is after every time that a clock of the service gives.
var EndOfTime = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// notEpoch returns a time, or the zero time for the epoch, which a query returns for no
// time.
func notEpoch(t time.Time) time.Time {
	if t.Unix() == 0 {
		return time.Time{}
	}
	return t.UTC()
}

// Escape writes text so that PostgreSQL can store it: PostgreSQL accepts neither a NUL nor
// broken UTF-8. A text with one of these, or with a backslash, is written as in a Go
// string. Any other text is unchanged.
func Escape(text string) string {
	if utf8.ValidString(text) && !strings.ContainsAny(text, "\x00\\") {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

// Unescape returns the original of a text that [Escape] has changed.
func Unescape(text string) string {
	if strings.Contains(text, `\`) {
		if original, err := strconv.Unquote(`"` + text + `"`); err == nil {
			return original
		}
	}
	return text
}

// pageBytes is the size at which a page of a list ends, with the row that reaches it. It limits
// the memory of a list call whose client reads slowly, so that transport.Config.MaxCalls such calls
// fit. A page may therefore have fewer items than the client requested (AIP-158).
const pageBytes = 256 << 10

// Page reads one page of a list: run a query on it. The query must return one row more than the
// page has room for.
type Page struct {
	DB
	Bytes int  // the size at which the page ends, with the row that reaches it
	More  bool // set by the query: more rows follow the page
	size  int
}

// NewPage returns a page of at most size rows.
func NewPage(pool *pgxpool.Pool, size int) *Page {
	return &Page{DB: Autocommit(pool), size: size, Bytes: pageBytes}
}

// MaxRows is the LIMIT of the query.
func (p *Page) MaxRows() int32 { return Limit(p.size + 1) }

// Query implements DB. Its rows end with the page.
func (p *Page) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := p.DB.Query(ctx, sql, args...)
	return p.Cut(rows), err
}

// Cut returns rows that end with the page.
func (p *Page) Cut(rows pgx.Rows) pgx.Rows { return &pageRows{rows, p} }

type pageRows struct {
	pgx.Rows
	page *Page
}

func (r *pageRows) Next() bool {
	if !r.Rows.Next() {
		return false
	}
	if r.page.size == 0 || r.page.Bytes <= 0 {
		r.page.More = true
		return false
	}
	r.page.size--
	for _, value := range r.RawValues() {
		r.page.Bytes -= len(value)
	}
	return true
}
