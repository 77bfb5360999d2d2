package server

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/videocatalog/internal/domain"
)

// tokenFormat is part of what a token is sealed with, so that a token in another
// format is none at all.
const tokenFormat = 2

// newSeal makes what seals tokens: AES-256-GCM, with a nonce at random for each.
// Without a key it makes one, and the tokens end with the process.
func newSeal(key []byte) (cipher.AEAD, error) {
	if key == nil {
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("token key: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// tokens reads and writes the places in a response that a client carries around
// for us, such as page tokens. One is a cursor as JSON, sealed: a client can
// neither read it nor make one, nor use it with another request.
type tokens struct {
	field string // where the request has the token
	seal  cipher.AEAD
	seed  []byte // what a token is good for: the request
}

// newTokens makes the tokens of a request. The field with the token, and
// page_size, may change between two calls; nothing else may.
func newTokens(seal cipher.AEAD, request proto.Message, field protoreflect.Name) (tokens, error) {
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
	return tokens{field: string(field), seal: seal, seed: seed}, nil
}

func (t tokens) encode(cursor any) (string, error) {
	text, err := json.Marshal(cursor)
	if err != nil {
		return "", fmt.Errorf("marshal cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(t.seal.Seal(nil, nil, text, t.seed)), nil //nolint:gosec // it draws the nonce itself
}

func (t tokens) decode(token string, cursor any) error {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return t.invalid()
	}
	text, err := t.seal.Open(nil, nil, sealed, t.seed)
	if err != nil {
		return t.invalid()
	}
	if err := json.Unmarshal(text, cursor); err != nil {
		return fmt.Errorf("unmarshal cursor: %w", err) // we sealed it
	}
	return nil
}

func (t tokens) invalid() error {
	return domain.InvalidField(t.field, "is not from this request; send what the call before answered, and all else as it was")
}
