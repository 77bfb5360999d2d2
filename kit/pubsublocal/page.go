package pubsublocal

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"sort"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	defaultPageSize = 100
	pageMarker      = "pubsublocal page after " // part of the checksum, so that tokens of other programs do not match
)

// page returns a page of items, and the token for the next page (A9, A10). The
// token is empty after the last page. items are in ascending order of name. A
// token has the last name of its page, so an item that is created or deleted
// between two calls neither repeats nor hides others.
//
// It returns INVALID_ARGUMENT for a negative size, and for a token that page
// did not return.
func page[T any](items []T, name func(T) string, size int32, token string) (pageItems []T, next string, err error) {
	if size < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "page_size must not be negative. You passed %d.", size)
	}
	if size == 0 {
		size = defaultPageSize
	}
	if token != "" {
		last, ok := decodePageToken(token)
		if !ok {
			return nil, "", status.Error(codes.InvalidArgument, "page_token is not one that this server gave out.")
		}
		items = items[sort.Search(len(items), func(i int) bool { return name(items[i]) > last }):]
	}
	if len(items) <= int(size) {
		return items, "", nil
	}
	items = items[:size:size]
	return items, encodePageToken(name(items[size-1])), nil
}

func encodePageToken(last string) string {
	text := pageMarker + last
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text)))
	return base64.RawURLEncoding.EncodeToString(append(sum, last...))
}

func decodePageToken(token string) (last string, ok bool) {
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(decoded) < 4 || strings.ContainsAny(token, "\r\n") { // the decoder ignores line breaks
		return "", false
	}
	last = string(decoded[4:])
	return last, binary.BigEndian.Uint32(decoded) == crc32.ChecksumIEEE([]byte(pageMarker+last))
}
