package aip

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

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

// List returns one page of a list, and the token of the next one if more items follow. list gets the cursor of the last
// item of the previous page, which is nil on the first page, and the size of the page. A negative page size, and a page
// token that is not from the same list, are problem.Invalid (AIP-158).
func List[C, T any, M proto.Message](request ListRequest, toProto func(T) M, cursor func(T) C, list func(after *C, size int) (items []T, more bool, err error),
) (page []M, next string, err error) {
	tokens, size := NewTokens(request, "page_token"), min(cmp.Or(int(request.GetPageSize()), defaultPageSize), maxPageSize)
	if size < 0 {
		return nil, "", problem.InvalidField("page_size", "must not be negative")
	}
	var after *C
	if token := request.GetPageToken(); token != "" {
		after = new(C)
		if err := tokens.Decode(token, after); err != nil {
			return nil, "", err
		}
	}
	items, more, err := list(after, size)
	if more && err == nil {
		next, err = tokens.Encode(cursor(items[len(items)-1]))
	}
	return Each(items, toProto), next, err
}

// tokenFormat is part of the checksum of every token, so that a token in an older
// format is rejected.
const tokenFormat = 3

// sumBytes is the length of the checksum of a token.
const sumBytes = 8

// nul matches a NUL in JSON, which PostgreSQL does not store.
var nul = regexp.MustCompile(`(^|[^\\])(\\\\)*\\u0000`)

// Tokens encodes and decodes cursors that the client carries for us, such as
// page tokens. A token is a checksum and the JSON of a cursor, in base64. The
// checksum finds mistakes: a token that is cut, or used with another request. It is
// no protection, and needs none: a cursor has only values that its client may read.
type Tokens struct {
	field string // the request field that holds the token
	seed  []byte // the request that the token is valid for
}

// NewTokens returns the tokens of a request. Between two calls only the token
// field and page_size may change.
func NewTokens(request proto.Message, field protoreflect.Name) Tokens {
	rest := proto.Clone(request).ProtoReflect()
	for _, name := range []protoreflect.Name{field, "page_size"} {
		if fd := rest.Descriptor().Fields().ByName(name); fd != nil {
			rest.Clear(fd)
		}
	}
	seed := fmt.Appendf(nil, "%d %s ", tokenFormat, rest.Descriptor().FullName())
	seed, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(seed, rest.Interface()) // cannot fail for what gRPC has decoded
	return Tokens{field: string(field), seed: seed}
}

// Encode returns the token of a cursor.
func (t Tokens) Encode(cursor any) (string, error) {
	text, err := json.Marshal(cursor)
	if err != nil {
		return "", fmt.Errorf("marshal cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(append(t.sum(text), text...)), nil
}

// Decode reads the cursor of a token. A token of another request is
// problem.Invalid.
func (t Tokens) Decode(token string, cursor any) error {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) < sumBytes {
		return t.invalid()
	}
	sum, text := raw[:sumBytes], raw[sumBytes:]
	if !bytes.Equal(sum, t.sum(text)) || nul.Match(text) || json.Unmarshal(text, cursor) != nil {
		return t.invalid()
	}
	return nil
}

func (t Tokens) sum(text []byte) []byte {
	sum := sha256.Sum256(append(bytes.Clone(t.seed), text...))
	return sum[:sumBytes]
}

func (t Tokens) invalid() error {
	return problem.InvalidField(t.field, "is not from this request: send the token of the last response, and change nothing else")
}
