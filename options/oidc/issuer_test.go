package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

const audience = "https://books.example.com"

// issuer is an OpenID Connect issuer in this process.
type issuer struct {
	url string

	mu       sync.Mutex
	keys     []jose.JSONWebKey
	requests int
	busy     int // requests under way
	mostBusy int
	// answer, if set, responds instead; path is the path of the request.
	answer func(w http.ResponseWriter, path string) bool
}

// newIssuer makes an issuer that is served by HTTP.
func newIssuer(t *testing.T, keys ...jose.JSONWebKey) *issuer {
	t.Helper()
	i := &issuer{keys: keys}
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	i.url = server.URL
	return i
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.requests++
	i.busy++
	i.mostBusy = max(i.mostBusy, i.busy)
	answer, public := i.answer, jose.JSONWebKeySet{}
	for _, key := range i.keys {
		public.Keys = append(public.Keys, key.Public())
	}
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		i.busy--
		i.mu.Unlock()
	}()
	if answer != nil && answer(w, r.URL.Path) {
		return
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.url, "jwks_uri": i.url + "/keys"})
	case "/keys":
		_ = json.NewEncoder(w).Encode(public)
	default:
		http.NotFound(w, r)
	}
}

// RoundTrip responds without a network, so that a bubble of synctest can hold it.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.ServeHTTP(w, r)
	}()
	select {
	case <-done:
		return w.Result(), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (i *issuer) set(change func(*issuer)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(i)
}

func (i *issuer) requestCount() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests
}

// away responds as an issuer with an internal error does.
func away(w http.ResponseWriter, _ string) bool {
	http.Error(w, "trouble", http.StatusInternalServerError)
	return true
}

func newKey(t testing.TB, id string, algorithm jose.SignatureAlgorithm) jose.JSONWebKey {
	t.Helper()
	var private crypto.Signer
	var err error
	switch algorithm {
	case jose.RS256, jose.PS256:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	case jose.EdDSA:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	must(t, err)
	return jose.JSONWebKey{Key: private, KeyID: id, Algorithm: string(algorithm), Use: "sig"}
}

// goodClaims returns the claims of a valid token.
func (i *issuer) goodClaims() map[string]any {
	now := time.Now().Unix()
	return map[string]any{
		"iss": i.url, "aud": audience, "sub": "123", "iat": now, "exp": now + 3600,
		"email": "web@shop.example.com", "email_verified": true,
	}
}

// with returns a copy of claims with one value changed; nil removes the claim.
func with(claims map[string]any, name string, value any) map[string]any {
	changed := maps.Clone(claims)
	changed[name] = value
	if value == nil {
		delete(changed, name)
	}
	return changed
}

// sign makes a token.
func sign(t testing.TB, key jose.JSONWebKey, claims any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	must(t, err)
	text, err := json.Marshal(claims)
	must(t, err)
	signed, err := signer.Sign(text)
	must(t, err)
	token, err := signed.CompactSerialize()
	must(t, err)
	return token
}

// verifier runs a Verifier of an issuer until the test ends.
func (i *issuer) verifier(t *testing.T, transport http.RoundTripper) *verifier {
	t.Helper()
	v, err := newVerifier(verifierConfig{
		Issuer: i.url, Audiences: []string{"https://other.example.com", audience},
		Transport: transport, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- v.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return v
}

func ids(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("unknown-%d", i))
	}
	return names
}
