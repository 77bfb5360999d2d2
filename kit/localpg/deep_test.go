package localpg

import (
	"os"
	"testing"
)

// deep skips a slow test unless DEEP_TEST is set, as make check does.
func deep(t *testing.T) {
	t.Helper()
	if os.Getenv("DEEP_TEST") == "" {
		t.Skip("DEEP_TEST is not set: make check runs this test")
	}
}
