// Package aip helps handlers to follow the API improvement proposals
// (https://google.aip.dev): resource names, etags, update masks, filters, page
// tokens. It knows no resource.
package aip

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"example.com/videocatalog/internal/problem"
)

// ParseName returns the id in a resource name such as books/{uuid} (AIP-122).
// The collection ends in a slash. Any other name is problem.Invalid.
func ParseName(field, collection, name string) (uuid.UUID, error) {
	text, ok := strings.CutPrefix(name, collection)
	id, err := uuid.Parse(text)
	if err != nil || !ok || id.String() != text { // Parse accepts other forms, too
		return uuid.Nil, problem.InvalidField(field, "must be %s{uuid}", collection)
	}
	return id, nil
}

// Etag returns the version as a quoted string (AIP-154; RFC 9110, 8.8.3).
func Etag(version int64) string { return strconv.Quote(strconv.FormatInt(version, 10)) }

// ParseEtag returns the version in an etag, or 0, which means any version, for
// an empty one. For an etag that Etag never returns, it returns a version that
// no resource has.
func ParseEtag(etag string) int64 {
	version, err := strconv.ParseInt(strings.Trim(etag, `"`), 10, 64)
	switch {
	case etag == "":
		return 0
	case err != nil || version < 1 || Etag(version) != etag:
		return -1
	}
	return version
}

// IfSet converts a value. A zero value, of a field that is not set, becomes another zero value.
func IfSet[A comparable, B any](value A, convert func(A) B) (converted B) {
	var unset A
	if value != unset {
		converted = convert(value)
	}
	return converted
}

// Each converts the values of a list.
func Each[A, B any](values []A, convert func(A) B) (converted []B) {
	for _, value := range values {
		converted = append(converted, convert(value))
	}
	return converted
}

// Timestamp returns a time as a message, or nil for the zero time.
func Timestamp(t time.Time) *timestamppb.Timestamp { return IfSet(t.UTC(), timestamppb.New) }

// ID returns a UUID, or uuid.Nil for a text that is no UUID.
func ID(text string) uuid.UUID {
	id, err := uuid.Parse(text)
	if err != nil {
		return uuid.Nil
	}
	return id
}
