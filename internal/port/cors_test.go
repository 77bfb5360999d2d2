package port

import (
	"strings"
	"testing"
)

// An origin is a scheme, a host and perhaps a port, and nothing else.
func TestCheckOrigin(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"*", "https://app.example.com", "http://localhost:3000"} {
		if err := CheckOrigin(origin); err != nil {
			t.Errorf("CheckOrigin(%q) = %v, want nil", origin, err)
		}
	}
	for _, origin := range []string{"", "app.example.com", "https://app.example.com/", "https://app.example.com/x", "https://u@app.example.com", "ftp://app.example.com", "null", "https://", "HTTPS://app.example.com", "https://a b"} {
		if err := CheckOrigin(origin); err == nil || !strings.Contains(err.Error(), "is no origin") {
			t.Errorf("CheckOrigin(%q) = %v, want an error", origin, err)
		}
	}
}
