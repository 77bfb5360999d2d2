// Package deep marks the tests that prove more than a change to a clone can break:
// storms, attacks, failovers, plans. They take most of the time.
package deep

import (
	"os"
	"testing"
)

// Test skips a test unless DEEP_TEST is set, as make check-deep and CI do.
func Test(t testing.TB) {
	t.Helper()
	if os.Getenv("DEEP_TEST") == "" {
		t.Skip("DEEP_TEST is not set: make check-deep runs this test")
	}
}
