package server

import (
	"crypto/cipher"

	"google.golang.org/protobuf/proto"
)

const (
	defaultPageSize = 50
	maxPageSize     = 1000 // a larger page_size is not an error (AIP-158)
	// maxPageBytes is how many bytes of text a page may have before its last
	// item. It limits the memory of a list call, and keeps a page below 4 MiB,
	// the default limit of gRPC clients. A page may therefore have fewer items
	// than the client requested (AIP-158).
	maxPageBytes = 1 << 20
)

// pageRequest is the request of any list method.
type pageRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// pager makes one page of a list whose cursors have type C.
type pager[C any] struct {
	size   int
	after  *C // the last item of the previous page; nil on the first page
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

// pageOf converts the items to messages, and returns the token of the next page
// if there are more items.
func pageOf[C, T any, M proto.Message](p pager[C], items []T, more bool, toProto func(T) M, cursor func(T) C) (page []M, next string, err error) {
	for _, item := range items {
		page = append(page, toProto(item))
	}
	if more {
		next, err = p.tokens.encode(cursor(items[len(items)-1]))
	}
	return page, next, err
}
