package server

import (
	"crypto/cipher"

	"google.golang.org/protobuf/proto"
)

const (
	defaultPageSize = 50
	// maxPageBytes keeps a page below the 4 MiB that a gRPC client accepts by
	// default. A page may have fewer items than were asked for (AIP-158).
	maxPageBytes = 3 << 20
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
	p := pager[C]{size: int(request.GetPageSize())}
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

// limit is one more than the page holds, which tells whether there is more.
func (p pager[C]) limit() int { return p.size + 1 }

// pageOf answers what of the items fits on the page, and the token of the next
// page, if there is one. At least one item fits.
func pageOf[C, T any, M proto.Message](p pager[C], items []T, toProto func(T) M, cursor func(T) C) (page []M, next string, err error) {
	size := 0
	for i, item := range items {
		message := toProto(item)
		size += proto.Size(message)
		if i == p.size || i > 0 && size > maxPageBytes {
			next, err = p.tokens.encode(cursor(items[i-1]))
			return page, next, err
		}
		page = append(page, message)
	}
	return page, "", nil
}
