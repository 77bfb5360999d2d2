package main

import (
	"maps"
	"strings"
	"testing"
)

// The token is in the header that Cloud Run reads, and in the one that the service reads.
func TestTokenIsSentTwice(t *testing.T) {
	got, err := bearer("a.b.c").GetRequestMetadata(t.Context())
	want := map[string]string{"authorization": "Bearer a.b.c", "x-serverless-authorization": "Bearer a.b.c"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("GetRequestMetadata() = %v, %v, want %v", got, err, want)
	}
	if !bearer("").RequireTransportSecurity() {
		t.Error("RequireTransportSecurity() = false, want the token over TLS only")
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
