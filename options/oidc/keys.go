package oidc

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"example.com/videocatalog/internal/auth"
)

// When keys are read. An issuer publishes a key well before it signs with it,
// and a forged token may name any key. So an unknown key causes a request at
// most once per keysPause.
const (
	keysRefresh = time.Hour        // age at which keys are read again
	keysLast    = 24 * time.Hour   // how long keys stay valid while the issuer is unavailable
	keysPause   = 10 * time.Second // shortest time between two requests
	keysRetry   = 5 * time.Minute  // longest time between two requests while they fail
	keysTimeout = 5 * time.Second  // of one request
	keysBytes   = 1 << 20          // largest size of one response in bytes
	keysMost    = 100              // most keys in one set
	keysBits    = 2048             // shortest RSA key in bits
)

var (
	errUnknownKey = errors.New("signed with a key that the issuer does not have")
	errNoKeys     = fmt.Errorf("%w: the issuer's keys could not be read", auth.ErrUnavailable)
)

// keys has the public keys of one issuer.
type keys struct {
	issuer string
	client *http.Client
	log    *slog.Logger
	want   chan struct{}   // signals run to read the keys
	short  map[string]bool // ids of keys logged as too short; used only by run

	mu  sync.Mutex
	now keysState // guarded by mu
}

// keysState is a snapshot of the keys. It is copied by value; nothing that it
// refers to is changed.
type keysState struct {
	set      []jose.JSONWebKey
	readTime time.Time     // when set was read
	tryTime  time.Time     // when the last request began
	trying   bool          // a request is in flight
	tryErr   error         // result of the last finished request
	tried    chan struct{} // closed when the current or next request ends
}

func newKeys(issuer string, transport http.RoundTripper, log *slog.Logger) *keys {
	return &keys{
		issuer: issuer, log: log, want: make(chan struct{}, 1), now: keysState{tried: make(chan struct{})},
		client: &http.Client{
			Transport: transport, Timeout: keysTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("redirects are not followed") },
		},
	}
}

// run reads the keys regularly until ctx is done. Only run sends requests, so
// there is at most one at a time.
func (k *keys) run(ctx context.Context) {
	retry := keysPause
	for ctx.Err() == nil {
		pause := keysRefresh
		if err := k.read(ctx); err == nil {
			retry = keysPause
		} else if ctx.Err() == nil {
			k.log.WarnContext(ctx, "oidc: keys of the issuer not read", "issuer", k.issuer, "err", err)
			pause, retry = retry, min(2*retry, keysRetry)
		}
		k.wait(ctx, pause)
	}
}

// wait waits for pause, or until a signal on want.
func (k *keys) wait(ctx context.Context, pause time.Duration) {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case <-k.want:
			// Sent before or during the last request, which has served it.
			if time.Since(k.state().tryTime) >= keysPause {
				return
			}
		}
	}
}

func (k *keys) state() keysState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// find returns the keys that may have signed a token: the key with the token's
// key id, or all keys if it has none. For an unknown id it waits for one new
// request to the issuer, unless one was sent within keysPause. It returns
// errUnknownKey or errNoKeys.
func (k *keys) find(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	state := k.state()
	found, err := state.find(id)
	if err == nil {
		return found, nil
	}
	if !state.trying && time.Since(state.tryTime) < keysPause {
		return nil, err
	}
	select {
	case k.want <- struct{}{}:
	default: // a signal is already pending
	}
	select {
	case <-state.tried:
		return k.state().find(id)
	case <-ctx.Done():
		return nil, errNoKeys
	}
}

func (s keysState) find(id string) ([]jose.JSONWebKey, error) {
	if s.readTime.IsZero() || time.Since(s.readTime) >= keysLast {
		return nil, errNoKeys
	}
	found := s.set
	if id != "" {
		found = slices.DeleteFunc(slices.Clone(s.set), func(key jose.JSONWebKey) bool { return key.KeyID != id })
	}
	switch {
	case len(found) > 0:
		return found, nil
	case s.tryErr != nil: // the key may be newer than our set
		return nil, errNoKeys
	}
	return nil, errUnknownKey
}

// read requests the keys from the issuer. On error the old keys stay.
func (k *keys) read(ctx context.Context) error {
	began := time.Now()
	k.mu.Lock()
	k.now.tryTime, k.now.trying = began, true
	k.mu.Unlock()

	set, err := k.fetch(ctx)

	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.now.set, k.now.readTime = set, began
	}
	close(k.now.tried)
	k.now.trying, k.now.tryErr, k.now.tried = false, err, make(chan struct{})
	return err
}

// fetch returns the issuer's keys, at the URL found by OpenID Connect discovery
// (https://openid.net/specs/openid-connect-discovery-1_0.html).
func (k *keys) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	var discovered struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := k.get(ctx, strings.TrimSuffix(k.issuer, "/")+"/.well-known/openid-configuration", &discovered); err != nil {
		return nil, err
	}
	if discovered.Issuer != k.issuer {
		return nil, fmt.Errorf("the issuer calls itself %q", discovered.Issuer)
	}
	if err := checkURL(discovered.Keys); err != nil {
		return nil, fmt.Errorf("jwks_uri %q %w", discovered.Keys, err)
	}
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := k.get(ctx, discovered.Keys, &document); err != nil {
		return nil, err
	}
	if len(document.Keys) > keysMost {
		return nil, fmt.Errorf("%s has %d keys, at most %d are read", discovered.Keys, len(document.Keys), keysMost)
	}
	var set []jose.JSONWebKey
	for _, raw := range document.Keys {
		var key jose.JSONWebKey
		// Skip key types that the library does not know; no accepted algorithm
		// uses them.
		if key.UnmarshalJSON(raw) != nil || !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" {
			continue
		}
		if bits := tooShort(key); bits > 0 {
			k.logShort(ctx, key.KeyID, bits)
			continue
		}
		set = append(set, key)
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("%s has no public key to verify signatures with", discovered.Keys)
	}
	return set, nil
}

// tooShort returns the bits of an RSA key below the minimum for verification
// (NIST SP 800-131A Rev. 2, table 2), else 0.
func tooShort(key jose.JSONWebKey) int {
	if public, ok := key.Key.(*rsa.PublicKey); ok && public.N.BitLen() < keysBits {
		return public.N.BitLen()
	}
	return 0
}

// logShort logs once that a key is too short to be used.
func (k *keys) logShort(ctx context.Context, id string, bits int) {
	if k.short[id] {
		return
	}
	if k.short == nil || len(k.short) >= keysMost {
		k.short = make(map[string]bool)
	}
	k.short[id] = true
	k.log.WarnContext(ctx, "oidc: key of the issuer not used, it is too short", "issuer", k.issuer, "key_id", id, "bits", bits, "least", keysBits)
}

func (k *keys) get(ctx context.Context, url string, document any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	response, err := k.client.Do(request)
	if err != nil {
		return err // it names the URL
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: status %s", url, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, keysBytes+1))
	if err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	if len(body) > keysBytes {
		return fmt.Errorf("get %s: more than %d bytes", url, keysBytes)
	}
	if err := json.Unmarshal(body, document); err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	return nil
}
