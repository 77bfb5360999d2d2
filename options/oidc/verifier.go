package oidc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"example.com/videocatalog/internal/auth"
)

// algorithms are the accepted signature algorithms: asymmetric ones only. With
// "none" a token would prove nothing. With a symmetric algorithm the issuer's
// public key could be used as the secret (RFC 8725, 3.1).
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Google uses both of these as the issuer of its tokens
// (https://developers.google.com/identity/openid-connect/openid-connect#validatinganidtoken).
const (
	googleIssuer = "https://accounts.google.com"
	googleOther  = "accounts.google.com"
)

// leeway is the largest accepted difference between the issuer's clock and ours.
const leeway = 30 * time.Second

// verifierConfig has the settings of a verifier.
type verifierConfig struct {
	// Issuer is the URL of the issuer, exactly as in its tokens. Its keys are
	// found by OpenID Connect discovery. Required.
	Issuer string
	// Audiences are the accepted audiences of tokens. They must include this
	// service, which on Cloud Run is its URL. Required.
	Audiences []string
	// Transport sends the requests to the issuer. Nil: http.DefaultTransport.
	Transport http.RoundTripper
	// Log receives the reason when keys cannot be read.
	Log *slog.Logger
}

// verifier identifies callers by their tokens. Its Run must be running. It is
// safe for concurrent use.
type verifier struct {
	cfg  verifierConfig
	keys *keys
}

// newVerifier returns a verifier. It sends no request yet.
func newVerifier(cfg verifierConfig) (*verifier, error) {
	if err := checkIssuer(cfg.Issuer); err != nil {
		return nil, fmt.Errorf("issuer %w", err)
	}
	if len(cfg.Audiences) == 0 || slices.Contains(cfg.Audiences, "") {
		return nil, errors.New("audiences must be given, and none may be empty: tokens for others would be good here too")
	}
	return &verifier{cfg: cfg, keys: newKeys(cfg.Issuer, cfg.Transport, cfg.Log)}, nil
}

// checkIssuer returns an error if the URL of an issuer is not valid.
func checkIssuer(issuer string) error {
	if err := checkURL(issuer); err != nil {
		return err
	}
	if u, err := url.Parse(issuer); err != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("must have no query and no fragment")
	}
	return nil
}

// checkURL returns an error if keys must not be read from a URL. It requires
// https except on this machine: whoever can change the response can issue
// tokens.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil {
		return errors.New("must be a URL such as https://accounts.google.com")
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "https" && !(u.Scheme == "http" && (u.Hostname() == "localhost" || ip.IsLoopback())) {
		return errors.New("must begin with https://, unless it is on this machine")
	}
	return nil
}

// Run reads the issuer's keys regularly. It returns nil once ctx is done.
func (v *verifier) Run(ctx context.Context) error {
	v.keys.run(ctx)
	return nil
}

// Verify returns the caller that a token identifies. An error says why the
// token is not accepted, and must not be sent to the caller. It
// wraps [auth.ErrUnavailable] if the issuer's keys are unavailable.
func (v *verifier) Verify(ctx context.Context, token string) (auth.Caller, error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return auth.Caller{}, err
	}
	header := parsed.Headers[0] // the compact form, the only accepted one, has exactly one header
	candidates, err := v.keys.find(ctx, header.KeyID)
	if err != nil {
		return auth.Caller{}, err
	}
	var registered jwt.Claims
	var ours auth.Claims
	for _, key := range candidates {
		if key.Algorithm != "" && key.Algorithm != header.Algorithm {
			err = fmt.Errorf("the key is for %s, the token is signed with %s", key.Algorithm, header.Algorithm)
			continue
		}
		if err = parsed.Claims(key.Key, &registered, &ours); err == nil {
			break
		}
		err = fmt.Errorf("verify with key %q: %w", key.KeyID, err)
	}
	if err != nil {
		return auth.Caller{}, err
	}
	if err := v.check(registered); err != nil {
		return auth.Caller{}, err
	}
	return ours.Caller(), nil
}

// check validates the claims of a token whose signature is valid.
func (v *verifier) check(c jwt.Claims) error {
	if c.Issuer == googleOther && v.cfg.Issuer == googleIssuer {
		c.Issuer = googleIssuer
	}
	if c.Subject == "" || c.Expiry == nil {
		return errors.New("the token has no subject or no expiry")
	}
	err := c.ValidateWithLeeway(jwt.Expected{Issuer: v.cfg.Issuer, AnyAudience: v.cfg.Audiences, Time: time.Now()}, leeway)
	if err != nil {
		return fmt.Errorf("%w (issuer %q, audience %q)", err, c.Issuer, c.Audience)
	}
	return nil
}
