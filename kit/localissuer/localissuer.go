// Package localissuer is an OpenID Connect issuer on this machine, for tests and for cmd/dev. It issues tokens with any
// claims to every caller, so it listens on the loopback interface only.
package localissuer

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"time"
)

// Audience is the audience of the tokens.
const Audience = "local"

// Policy lets every caller with a token call every method: it is the content of AUTH_POLICY_FILE.
const Policy = "rules: [{any_authenticated: true, methods: [\"*\"]}]\n"

// Issuer issues tokens until Close. It is safe for concurrent use.
type Issuer struct {
	URL string // for AUTH_ISSUER

	key    ed25519.PrivateKey
	server *http.Server
	done   chan error
}

// Start starts an issuer with a new key on a free port. GET /token?tenant=acme of it returns a token with that claim.
func Start() (*Issuer, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of the whole process
	if err != nil {
		return nil, fmt.Errorf("open the port of the issuer: %w", err)
	}
	i := &Issuer{URL: "http://" + listener.Addr().String(), key: private, done: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", document(map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"}))
	mux.HandleFunc("GET /keys", document(map[string]any{"keys": []any{map[string]string{
		"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": "local", "x": base64.RawURLEncoding.EncodeToString(public),
	}}}))
	mux.HandleFunc("GET /token", func(w http.ResponseWriter, r *http.Request) {
		claims := make(map[string]any)
		for name, values := range r.URL.Query() {
			claims[name] = values[0]
		}
		fmt.Fprint(w, i.Token(claims))
	})
	i.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { i.done <- i.server.Serve(listener) }()
	return i, nil
}

// document returns a handler that responds with a document.
func document(content any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(content) // of strings
	}
}

// Token returns a token for an hour, with the claims of a caller whose subject is local, and with more or other claims.
func (i *Issuer) Token(more map[string]any) string {
	now := time.Now().Unix()
	claims := map[string]any{"iss": i.URL, "aud": Audience, "sub": "local", "iat": now, "exp": now + 3600}
	maps.Copy(claims, more)
	text, _ := json.Marshal(claims) // of values that JSON has
	return i.Sign(text)
}

// Sign returns a token of claims, as they are.
func (i *Issuer) Sign(claims []byte) string {
	encode := base64.RawURLEncoding.EncodeToString
	content := encode([]byte(`{"alg":"EdDSA","kid":"local","typ":"JWT"}`)) + "." + encode(claims)
	return content + "." + encode(ed25519.Sign(i.key, []byte(content)))
}

// Close stops the issuer.
func (i *Issuer) Close() error {
	err := i.server.Close()
	if end := <-i.done; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}
