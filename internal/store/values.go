package store

import (
	"math"
	"time"
)

// optional returns nil, which is NULL, for a zero value.
func optional[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// notNil returns an empty slice for nil, so that it is written as an empty
// array and not as NULL.
func notNil[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// valueOf returns the zero value for nil, which is NULL.
func valueOf[T any](value *T) T {
	if value == nil {
		var zero T
		return zero
	}
	return *value
}

func timeOf(t *time.Time) time.Time { return valueOf(t).UTC() }

func limit(n int) int32 { return int32(min(n, math.MaxInt32)) } //nolint:gosec // just checked

func mapSlice[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

// endOfTime is after every time that a clock of the service gives.
var endOfTime = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
