package server

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/videocatalog/internal/domain"
)

const (
	defaultPageSize = 50
	// maxPageBytes keeps a page below the 4 MiB that a gRPC client accepts by
	// default. A page may have fewer items than were asked for (AIP-158).
	maxPageBytes = 3 << 20
	// tokenFormat is part of the checksum of a token, so that a token in another
	// format is none at all.
	tokenFormat = 1
)

// tokens reads and writes the places in an answer that a client carries around
// for us, such as page tokens. One is base64 of a checksum and of a cursor as
// JSON. The checksum finds mistakes: a token that was damaged or goes with
// another request. It is no secret, so what a token says is checked like any
// other input.
type tokens struct {
	field string // where the request has the token
	seed  []byte // what the checksum knows of the request
}

// newTokens makes the tokens of a request. The field with the token, and
// page_size, may change between two calls; nothing else may.
func newTokens(request proto.Message, field protoreflect.Name) (tokens, error) {
	rest := proto.Clone(request).ProtoReflect()
	for _, name := range []protoreflect.Name{field, "page_size"} {
		if fd := rest.Descriptor().Fields().ByName(name); fd != nil {
			rest.Clear(fd)
		}
	}
	seed := fmt.Appendf(nil, "%d %s ", tokenFormat, rest.Descriptor().FullName())
	seed, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(seed, rest.Interface())
	if err != nil {
		return tokens{}, fmt.Errorf("marshal request: %w", err)
	}
	return tokens{field: string(field), seed: seed}, nil
}

func (t tokens) checksum(cursor []byte) []byte {
	sum := fnv.New64a()
	_, _ = sum.Write(t.seed) // never fails
	_, _ = sum.Write(cursor)
	return sum.Sum(nil)
}

func (t tokens) encode(cursor any) (string, error) {
	text, err := json.Marshal(cursor)
	if err != nil {
		return "", fmt.Errorf("marshal cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(append(t.checksum(text), text...)), nil
}

func (t tokens) decode(token string, cursor any) error {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return t.invalid()
	}
	const sumSize = 8
	if len(raw) < sumSize || !bytes.Equal(raw[:sumSize], t.checksum(raw[sumSize:])) {
		return t.invalid()
	}
	if err := json.Unmarshal(raw[sumSize:], cursor); err != nil {
		return t.invalid()
	}
	return nil
}

func (t tokens) invalid() error {
	return domain.InvalidField(t.field, "is not from this request; send what the call before answered, and all else as it was")
}

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

func newPager[C any](request pageRequest) (pager[C], error) {
	p := pager[C]{size: int(request.GetPageSize())}
	if p.size == 0 {
		p.size = defaultPageSize
	}
	var err error
	if p.tokens, err = newTokens(request, "page_token"); err != nil {
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
