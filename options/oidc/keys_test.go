package oidc

import (
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// ask verifies a token that a key has signed, in the bubble of a test.
func ask(t *testing.T, v *verifier, i *issuer, key jose.JSONWebKey) error {
	t.Helper()
	_, err := v.Verify(t.Context(), sign(t, key, i.goodClaims()))
	return err
}

func inBubble(t *testing.T, test func(t *testing.T, i *issuer, v *verifier, key jose.JSONWebKey)) {
	t.Helper()
	key := newKey(t, "old", jose.ES256)
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{url: "https://issuer.example.com", keys: []jose.JSONWebKey{key}}
		v := i.verifier(t, i)
		synctest.Wait() // until the keys are read
		test(t, i, v, key)
	})
}

// A new key of the issuer is accepted at once, unless the keys were read just before. A
// withdrawn key is accepted for an hour at most.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, i *issuer, v *verifier, old jose.JSONWebKey) {
		if err := ask(t, v, i, old); err != nil {
			t.Fatalf("before: %v", err)
		}
		time.Sleep(time.Minute)
		key := newKey(t, "new", jose.ES256)
		i.set(func(i *issuer) { i.keys = []jose.JSONWebKey{old, key} })
		if err := ask(t, v, i, key); err != nil {
			t.Errorf("the new key: %v, want it to be read at once", err)
		}
		if got := i.requestCount(); got != 4 {
			t.Errorf("%d requests, want 4: two documents at the start, and two for the new key", got)
		}
		if err := ask(t, v, i, old); err != nil {
			t.Errorf("the old key: %v, want it to be good beside the new one", err)
		}
		i.set(func(i *issuer) { i.keys = []jose.JSONWebKey{key} })
		time.Sleep(keysRefresh + time.Second)
		if err := ask(t, v, i, old); !errors.Is(err, errUnknownKey) {
			t.Errorf("the old key an hour after it was given up: %v, want %v", err, errUnknownKey)
		}
	})
}

// After a token that names an unknown key, a new key is read when the pause between two
// requests is over. More such tokens do not make the pause longer.
func TestUnknownKeysPutOffANewOneBriefly(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, i *issuer, v *verifier, old jose.JSONWebKey) {
		time.Sleep(time.Minute)
		bogus, key := newKey(t, "bogus", jose.ES256), newKey(t, "new", jose.ES256)
		if err := ask(t, v, i, bogus); !errors.Is(err, errUnknownKey) {
			t.Fatalf("the bogus key: %v, want %v", err, errUnknownKey)
		}
		i.set(func(i *issuer) { i.keys = []jose.JSONWebKey{old, key} })
		for range 9 {
			time.Sleep(keysPause / 10)
			for _, k := range []jose.JSONWebKey{bogus, key} {
				if err := ask(t, v, i, k); !errors.Is(err, errUnknownKey) {
					t.Errorf("%s within the pause: %v, want %v", k.KeyID, err, errUnknownKey)
				}
			}
		}
		time.Sleep(keysPause / 10)
		if err := ask(t, v, i, key); err != nil {
			t.Errorf("the new key after the pause: %v, want it to be read", err)
		}
	})
}

// Tokens with unknown keys cause one request at a time, and at most two requests in ten
// seconds: one for each document. They do not delay tokens with known keys.
func TestKeysAreReadSeldomWhateverTokensSay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, i *issuer, v *verifier, known jose.JSONWebKey) {
		i.set(func(i *issuer) {
			i.answer = func(http.ResponseWriter, string) bool { time.Sleep(time.Second); return false }
		})
		unknown := newKey(t, "unknown", jose.ES256)
		began := time.Now()
		before := i.requestCount()
		var callers sync.WaitGroup
		for _, id := range ids(50) {
			callers.Go(func() {
				key := unknown
				key.KeyID = id
				token := sign(t, key, i.goodClaims())
				for time.Since(began) < time.Minute {
					if _, err := v.Verify(t.Context(), token); !errors.Is(err, errUnknownKey) {
						t.Errorf("an unknown key: %v, want %v", err, errUnknownKey)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
			callers.Go(func() {
				for time.Since(began) < time.Minute {
					asked := time.Now()
					if err := ask(t, v, i, known); err != nil || time.Since(asked) > 0 {
						t.Errorf("the known key: %v after %v, want success at once", err, time.Since(asked))
					}
					time.Sleep(time.Second)
				}
			})
		}
		callers.Wait()
		if got := i.requestCount() - before; got < 2 || got > 2*6 {
			t.Errorf("%d requests in a minute, want two documents every ten seconds at most", got)
		}
		if i.mostBusy != 1 {
			t.Errorf("%d requests at a time, want 1", i.mostBusy)
		}
	})
}

// While the issuer is unavailable, its keys are valid for a day. An unknown key may be
// new: the error is errNoKeys. Once the issuer is back, the keys are read soon.
func TestKeysLastWhileTheIssuerIsAway(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, i *issuer, v *verifier, key jose.JSONWebKey) {
		i.set(func(i *issuer) { i.answer = away })
		time.Sleep(keysRefresh)
		before := i.requestCount()
		time.Sleep(keysLast - keysRefresh - time.Minute)
		if err := ask(t, v, i, key); err != nil {
			t.Errorf("after nearly a day: %v, want the key to be good", err)
		}
		if err := ask(t, v, i, newKey(t, "new", jose.ES256)); !errors.Is(err, errNoKeys) {
			t.Errorf("an unknown key: %v, want %v", err, errNoKeys)
		}
		if got := i.requestCount() - before; got > 24*12+10 {
			t.Errorf("%d requests in a day, want about one in %v", got, keysRetry)
		}
		time.Sleep(2 * time.Minute)
		if err := ask(t, v, i, key); !errors.Is(err, errNoKeys) {
			t.Errorf("after a day: %v, want %v", err, errNoKeys)
		}
		i.set(func(i *issuer) { i.answer = nil })
		time.Sleep(keysPause)
		if err := ask(t, v, i, key); err != nil {
			t.Errorf("the issuer is back: %v, want success", err)
		}
	})
}

// An issuer that is unavailable when the process starts, or that returns something wrong, is
// called again. Until then every token is refused, and no caller waits long.
func TestKeysSurviveABadIssuer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter, path string) bool{
		"away":    away,
		"hanging": func(http.ResponseWriter, string) bool { time.Sleep(time.Hour); return true },
		"another name": func(w http.ResponseWriter, _ string) bool {
			_, _ = io.WriteString(w, `{"issuer": "https://evil.example.com", "jwks_uri": "https://issuer.example.com/keys"}`)
			return true
		},
		"keys without TLS": func(w http.ResponseWriter, path string) bool {
			_, _ = io.WriteString(w, `{"issuer": "https://issuer.example.com", "jwks_uri": "http://issuer.example.com/keys"}`)
			return path != "/keys"
		},
		"elsewhere": func(w http.ResponseWriter, path string) bool {
			w.Header().Set("Location", "https://issuer.example.com/keys")
			w.WriteHeader(http.StatusFound)
			return path == "/keys"
		},
		"no JSON": func(w http.ResponseWriter, path string) bool { return path == "/keys" && write(w, "<html>") },
		"no keys": func(w http.ResponseWriter, path string) bool { return path == "/keys" && write(w, `{"keys": []}`) },
		"secret keys": func(w http.ResponseWriter, path string) bool {
			return path == "/keys" && write(w, `{"keys": [{"kty": "oct", "k": "AAAA", "kid": "old"}]}`)
		},
		"too many": func(w http.ResponseWriter, path string) bool {
			return path == "/keys" && write(w, `{"keys": [`+strings.Repeat(`{},`, keysMost)+`{}]}`)
		},
		"endless": func(w http.ResponseWriter, path string) bool {
			return path == "/keys" && write(w, `{"x": "`+strings.Repeat("x", keysBytes)+`"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := newKey(t, "old", jose.ES256)
			synctest.Test(t, func(t *testing.T) {
				i := &issuer{url: "https://issuer.example.com", keys: []jose.JSONWebKey{key}, answer: answer}
				v := i.verifier(t, i)
				began := time.Now()
				if err := ask(t, v, i, key); !errors.Is(err, errNoKeys) {
					t.Errorf("Verify() = %v, want %v", err, errNoKeys)
				}
				if took := time.Since(began); took > keysTimeout {
					t.Errorf("it took %v, want at most %v", took, keysTimeout)
				}
				i.set(func(i *issuer) { i.answer = nil })
				time.Sleep(2 * keysPause)
				if err := ask(t, v, i, key); err != nil {
					t.Errorf("once the issuer is well: %v, want success", err)
				}
				time.Sleep(time.Hour) // for what hangs
			})
		})
	}
}

func write(w io.Writer, text string) bool {
	fmt.Fprint(w, text)
	return true
}

// An RSA key that is too short is not used for any algorithm, and the log
// reports it once.
func TestShortKeysAreNotUsed(t *testing.T) {
	t.Parallel()
	private, err := rsa.GenerateKey(rand.Reader, 1024)
	must(t, err)
	short, long := jose.JSONWebKey{Key: private, KeyID: "short", Algorithm: "RS256", Use: "sig"}, newKey(t, "long", jose.RS256)
	i := newIssuer(t, short, long)
	var log strings.Builder
	k := newKeys(i.url, http.DefaultTransport, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		must(t, k.read(t.Context()))
	}
	if _, err := k.state().find("short"); !errors.Is(err, errUnknownKey) {
		t.Errorf("a key of 1024 bits is found: %v, want %v", err, errUnknownKey)
	}
	if _, err := k.state().find("long"); err != nil {
		t.Errorf("a key of 2048 bits: %v", err)
	}
	if n := strings.Count(log.String(), "key_id=short bits=1024"); n != 1 {
		t.Errorf("the log has %d lines about the key, want 1:\n%s", n, &log)
	}
}
