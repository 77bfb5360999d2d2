package aip

import (
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/internal/problem"
)

const (
	defaultPageSize = 50
	maxPageSize     = 1000 // a larger page_size is not an error (AIP-158)
)

// ListRequest is the request of any list method.
type ListRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// Pager makes one page of a list whose cursors have type C.
type Pager[C any] struct {
	Size   int
	After  *C // the last item of the previous page; nil on the first page
	tokens Tokens
}

// NewPager returns the pager of a request. A negative page size, and a page token
// that is not from the same list, are problem.Invalid (AIP-158).
func NewPager[C any](request ListRequest) (Pager[C], error) {
	p := Pager[C]{Size: min(int(request.GetPageSize()), maxPageSize)}
	if p.Size < 0 {
		return p, problem.InvalidField("page_size", "must not be negative")
	}
	if p.Size == 0 {
		p.Size = defaultPageSize
	}
	var err error
	if p.tokens, err = NewTokens(request, "page_token"); err != nil {
		return p, err
	}
	if token := request.GetPageToken(); token != "" {
		p.After = new(C)
		err = p.tokens.Decode(token, p.After)
	}
	return p, err
}

// PageOf converts the items to messages, and returns the token of the next page
// if there are more items.
func PageOf[C, T any, M proto.Message](p Pager[C], items []T, more bool, toProto func(T) M, cursor func(T) C) (page []M, next string, err error) {
	for _, item := range items {
		page = append(page, toProto(item))
	}
	if more {
		next, err = p.tokens.Encode(cursor(items[len(items)-1]))
	}
	return page, next, err
}
