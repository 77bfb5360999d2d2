package tenancy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxTenant is the largest size of the name of a tenant in bytes.
const maxTenant = 64

// claim returns the claim of a verified token that names its tenant. Anything but one string of the right form is an
// error, for the log. A token with two claims is refused: neither may be chosen.
func claim(token, name string) (string, error) {
	values, err := claims(token, name)
	switch {
	case err != nil:
		return "", fmt.Errorf("claims of the token: %w", err)
	case len(values) == 0:
		return "", fmt.Errorf("the token has no claim %s", name)
	case len(values) > 1:
		return "", fmt.Errorf("the token has the claim %s %d times", name, len(values))
	}
	var id string
	if json.Unmarshal(values[0], &id) != nil || values[0][0] != '"' {
		return "", fmt.Errorf("the claim %s must be one string", name)
	}
	switch {
	case id == "" || len(id) > maxTenant:
		return "", fmt.Errorf("the claim %s has %d bytes, and must have 1 to %d", name, len(id), maxTenant)
	case !utf8.Valid(values[0]) || strings.ContainsFunc(id, func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }):
		return "", fmt.Errorf("the claim %s has a character that no tenant may have", name)
	}
	return id, nil
}

// claims returns the values of a claim in a token (RFC 7519), in the order of the token.
func claims(token, name string) (values []json.RawMessage, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errors.New("it is no JWT")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if first, err := decoder.Token(); err != nil || first != json.Delim('{') {
		return nil, errors.Join(errors.New("they are no object"), err)
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		if key == name {
			values = append(values, value)
		}
	}
	_, err = decoder.Token()
	return values, err
}
