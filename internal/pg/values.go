package pg

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
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
