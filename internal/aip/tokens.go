package aip

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/videocatalog/internal/problem"
)

// tokenFormat is authenticated with every token, so that a token in an older
// format is rejected.
const tokenFormat = 2

// NewSeal returns the cipher for tokens: AES-256-GCM with a random nonce per
// token. If key is nil it generates one, and tokens become invalid when the
// process ends.
func NewSeal(key []byte) (cipher.AEAD, error) {
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

// Tokens encodes and decodes cursors that the client carries for us, such as
// page tokens. A token is an encrypted JSON cursor. A client can neither read
// it, nor forge it, nor use it with another request.
type Tokens struct {
	field string // the request field that holds the token
	seal  cipher.AEAD
	seed  []byte // the request that the token is valid for
}

// NewTokens returns the tokens of a request. Between two calls only the token
// field and page_size may change.
func NewTokens(seal cipher.AEAD, request proto.Message, field protoreflect.Name) (Tokens, error) {
	rest := proto.Clone(request).ProtoReflect()
	for _, name := range []protoreflect.Name{field, "page_size"} {
		if fd := rest.Descriptor().Fields().ByName(name); fd != nil {
			rest.Clear(fd)
		}
	}
	seed := fmt.Appendf(nil, "%d %s ", tokenFormat, rest.Descriptor().FullName())
	seed, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(seed, rest.Interface())
	if err != nil {
		return Tokens{}, fmt.Errorf("marshal request: %w", err)
	}
	return Tokens{field: string(field), seal: seal, seed: seed}, nil
}

// Encode returns the token of a cursor.
func (t Tokens) Encode(cursor any) (string, error) {
	text, err := json.Marshal(cursor)
	if err != nil {
		return "", fmt.Errorf("marshal cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(t.seal.Seal(nil, nil, text, t.seed)), nil //nolint:gosec // it draws the nonce itself
}

// Decode reads the cursor of a token. A token of another request, or of another
// key, is problem.Invalid.
func (t Tokens) Decode(token string, cursor any) error {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return t.invalid()
	}
	text, err := t.seal.Open(nil, nil, sealed, t.seed)
	if err != nil {
		return t.invalid()
	}
	if err := json.Unmarshal(text, cursor); err != nil {
		return fmt.Errorf("unmarshal cursor: %w", err) // a token that decrypts was made here
	}
	return nil
}

func (t Tokens) invalid() error {
	return problem.InvalidField(t.field, "is not from this request: send the token of the last response, and change nothing else")
}
