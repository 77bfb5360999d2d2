package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
)

// The token is in the header that Cloud Run reads, and in the one that the service reads.
func TestTokenIsSentTwice(t *testing.T) {
	got, _ := metadata.FromOutgoingContext(withToken(t.Context(), "a.b.c"))
	want := metadata.Pairs("authorization", "Bearer a.b.c", "x-serverless-authorization", "Bearer a.b.c")
	if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("metadata = %v, want %v", got, want)
	}
}

// An invalid URL is refused, also a URL that would send the token without TLS.
func TestBadURLs(t *testing.T) {
	for _, test := range []struct{ name, url, token, want string }{
		{"no scheme", "localhost:8080", "", "want http://HOST:PORT"},
		{"another scheme", "grpc://localhost:8080", "", "want http://HOST:PORT"},
		{"a token in the clear", "http://localhost:8080", "secret", "in the clear"},
	} {
		err := run(t.Context(), []string{test.url}, test.token, t.Output())
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: run() = %v, want an error with %q and without the token", test.name, err, test.want)
		}
	}
	if err := run(t.Context(), nil, "", t.Output()); err == nil || !strings.Contains(err.Error(), "one argument") {
		t.Errorf("no URL: run() = %v, want an error that asks for one", err)
	}
}
