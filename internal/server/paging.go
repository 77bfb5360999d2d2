package server

import (
	"crypto/cipher"

	"google.golang.org/protobuf/proto"
)

const (
	defaultPageSize = 50
	maxPageSize     = 1000 // more is not an error (AIP-158)
	// maxPageBytes is how much text a page has before its last item. It bounds
	// what a list holds in memory, and keeps a page below the 4 MiB that a gRPC
	// client accepts by default. A page may have fewer items than were asked for
	// (AIP-158).
	maxPageBytes = 1 << 20
)

// pageRequest is what the request of every list has.
type pageRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// pager makes one page of a list whose places are cursors of type C.
type pager[C any] struct {
	size   int
	after  *C // the last item of the page before; nil on the first page
	tokens tokens
}

func newPager[C any](seal cipher.AEAD, request pageRequest) (pager[C], error) {
	p := pager[C]{size: min(int(request.GetPageSize()), maxPageSize)}
	if p.size == 0 {
		p.size = defaultPageSize
	}
	var err error
	if p.tokens, err = newTokens(seal, request, "page_token"); err != nil {
		return p, err
	}
	if token := request.GetPageToken(); token != "" {
		p.after = new(C)
		err = p.tokens.decode(token, p.after)
	}
	return p, err
}

// pageOf returns the items as messages, and the token of the next page if there
// is more.
func pageOf[C, T any, M proto.Message](p pager[C], items []T, more bool, toProto func(T) M, cursor func(T) C) (page []M, next string, err error) {
	for _, item := range items {
		page = append(page, toProto(item))
	}
	if more {
		next, err = p.tokens.encode(cursor(items[len(items)-1]))
	}
	return page, next, err
}
