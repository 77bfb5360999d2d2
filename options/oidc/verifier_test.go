package oidc

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/auth"
)

// A valid token of the issuer for this service identifies the caller, with any kind of
// key. Clocks may differ a little.
func TestVerifierBelievesTheIssuer(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.EdDSA} {
		t.Run(string(algorithm), func(t *testing.T) {
			t.Parallel()
			key := newKey(t, "1", algorithm)
			i := newIssuer(t, newKey(t, "0", jose.ES256), key)
			got, err := i.verifier(t, nil).Verify(t.Context(), sign(t, key, i.goodClaims()))
			must(t, err)
			if diff := cmp.Diff(auth.Caller{Subject: "123", Email: "web@shop.example.com"}, got); diff != "" {
				t.Errorf("caller (-want +got):\n%s", diff)
			}
		})
	}
	key := newKey(t, "", jose.ES256)
	i := newIssuer(t, newKey(t, "0", jose.ES256), key)
	v := i.verifier(t, nil)
	good, now := i.goodClaims(), time.Now().Unix()
	full, bare := auth.Caller{Subject: "123", Email: "web@shop.example.com"}, auth.Caller{Subject: "123"}
	for name, tt := range map[string]struct {
		claims map[string]any
		want   auth.Caller
	}{
		"no key id":            {good, full},
		"one of several":       {with(good, "aud", []string{"x", audience}), full},
		"another name of ours": {with(good, "aud", "https://other.example.com"), full},
		"just expired":         {with(good, "exp", now-20), full},
		"issued just now":      {with(good, "iat", now+20), full},
		"valid in a moment":    {with(good, "nbf", now+20), full},
		"verified in a text":   {with(good, "email_verified", "true"), full},
		"email not verified":   {with(good, "email_verified", false), bare},
		"email said nothing":   {with(good, "email_verified", nil), bare},
		"no email":             {with(good, "email", nil), bare},
	} {
		got, err := v.Verify(t.Context(), sign(t, key, tt.claims))
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// A token is refused if the issuer did not make it, if it was changed, or if it is for
// another service or time.
func TestVerifierRefusesEverythingElse(t *testing.T) {
	t.Parallel()
	key, rsaKey := newKey(t, "1", jose.ES256), newKey(t, "2", jose.RS256)
	encryption := newKey(t, "3", jose.ES256)
	encryption.Use = "enc"
	i := newIssuer(t, key, rsaKey, encryption)
	v := i.verifier(t, nil)
	good, now := i.goodClaims(), time.Now().Unix()
	part := func(token string, n int) string { return strings.Split(token, ".")[n] }
	raw := func(v any) string {
		text, err := json.Marshal(v)
		must(t, err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	token := sign(t, key, good)
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Fatalf("Verify() of a good token = %v, or else the rest shows nothing", err)
	}
	publicKey, err := rsaKey.Public().MarshalJSON()
	must(t, err)
	forged := newKey(t, "1", jose.ES256) // with the id of another
	otherAlgorithm := rsaKey
	otherAlgorithm.Algorithm = string(jose.PS256)
	for name, tt := range map[string]struct{ token, reason string }{
		"nothing":                {"", "empty"},
		"no token":               {"secret", "compact"},
		"no signature":           {part(token, 0) + "." + part(token, 1) + ".", "verif"},
		"signature removed":      {part(token, 0) + "." + part(token, 1) + ".SIGNATURE_REMOVED_BY_GOOGLE", "verif"},
		"algorithm none":         {raw(map[string]string{"alg": "none"}) + "." + part(token, 1) + ".", "algorithm"},
		"algorithm None":         {raw(map[string]string{"alg": "None", "kid": "1"}) + "." + part(token, 1) + ".", "algorithm"},
		"public key as a secret": {sign(t, jose.JSONWebKey{Key: publicKey, KeyID: "2", Algorithm: string(jose.HS256)}, good), "algorithm"},
		"another algorithm":      {sign(t, otherAlgorithm, good), "key is for RS256"},
		"another's signature":    {part(token, 0) + "." + raw(with(good, "sub", "1")) + "." + part(sign(t, key, with(good, "sub", "2")), 2), "verif"},
		"changed":                {part(token, 0) + "." + raw(with(good, "sub", "1")) + "." + part(token, 2), "verif"},
		"forged":                 {sign(t, forged, good), "verif"},
		"unknown key":            {sign(t, newKey(t, "9", jose.ES256), good), errUnknownKey.Error()},
		"key to encrypt with":    {sign(t, encryption, good), errUnknownKey.Error()},
		"encrypted":              {"e30.e30.e30.e30.e30", "compact"},
		"wrong issuer":           {sign(t, key, with(good, "iss", "https://accounts.google.com")), "issuer"},
		"no issuer":              {sign(t, key, with(good, "iss", nil)), "issuer"},
		"for another":            {sign(t, key, with(good, "aud", "https://books.example.com.evil.example")), "audience"},
		"for several others":     {sign(t, key, with(good, "aud", []string{"a", "b"})), "audience"},
		"for nobody":             {sign(t, key, with(good, "aud", nil)), "audience"},
		"expired":                {sign(t, key, with(good, "exp", now-40)), "expired"},
		"valid for ever":         {sign(t, key, with(good, "exp", nil)), "expiry"},
		"overflowing":            {sign(t, key, with(good, "exp", 1e300)), "number"},
		"not yet valid":          {sign(t, key, with(good, "nbf", now+40)), "nbf"},
		"issued in the future":   {sign(t, key, with(good, "iat", now+40)), "iat"},
		"about nobody":           {sign(t, key, with(good, "sub", nil)), "subject"},
		"claims of a wrong kind": {sign(t, key, with(good, "sub", 7)), "unmarshal"},
		"no claims":              {sign(t, key, "x"), "unmarshal"},
	} {
		got, err := v.Verify(t.Context(), tt.token)
		if err == nil || got != (auth.Caller{}) || errors.Is(err, errNoKeys) || !strings.Contains(err.Error(), tt.reason) {
			t.Errorf("%s: Verify() = %v, %v, want nobody and an error with %q", name, got, err, tt.reason)
		}
		if err != nil && len(tt.token) > 8 && strings.Contains(err.Error(), tt.token) {
			t.Errorf("%s: the error %v tells the token", name, err)
		}
	}
	if got := i.requestCount(); got > 4 {
		t.Errorf("%d requests to the issuer, want at most 4: two documents, twice", got)
	}
}

// Google's tokens may have either of its two names.
func TestVerifierKnowsBothNamesOfGoogle(t *testing.T) {
	t.Parallel()
	key := newKey(t, "1", jose.ES256)
	i := &issuer{url: googleIssuer, keys: []jose.JSONWebKey{key}}
	v := i.verifier(t, i)
	for iss, want := range map[string]bool{"https://accounts.google.com": true, "accounts.google.com": true, "http://accounts.google.com": false} {
		if _, err := v.Verify(t.Context(), sign(t, key, with(i.goodClaims(), "iss", iss))); (err == nil) != want {
			t.Errorf("issuer %q: %v, want success: %v", iss, err, want)
		}
	}
}

// Settings that would let in more than meant are refused.
func TestNewVerifierChecksItsSettings(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]verifierConfig{
		"no issuer":         {Audiences: []string{"x"}},
		"no URL":            {Issuer: "accounts.google.com", Audiences: []string{"x"}},
		"no TLS":            {Issuer: "http://accounts.google.com", Audiences: []string{"x"}},
		"name in the URL":   {Issuer: "https://me@accounts.google.com", Audiences: []string{"x"}},
		"query":             {Issuer: "https://accounts.google.com?x=y", Audiences: []string{"x"}},
		"no audience":       {Issuer: googleIssuer},
		"an empty audience": {Issuer: googleIssuer, Audiences: []string{"x", ""}},
	} {
		if _, err := newVerifier(cfg); err == nil {
			t.Errorf("%s: newVerifier() = nil, want an error", name)
		}
	}
	for _, url := range []string{googleIssuer, "http://localhost:8080", "http://127.0.0.1:1", "http://[::1]:1", "https://id.example.com/realms/x"} {
		if _, err := newVerifier(verifierConfig{Issuer: url, Audiences: []string{"x"}}); err != nil {
			t.Errorf("newVerifier(%q) = %v, want nil", url, err)
		}
	}
}
