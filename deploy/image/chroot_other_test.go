//go:build !linux

package main

import "testing"

// inImage needs Linux, for which the image is: elsewhere it stands in for a run that went well, and says so.
func inImage(t *testing.T, _ string, _ []string, args ...string) (string, error) {
	t.Helper()
	t.Logf("not on Linux: server %v is not run", args)
	return "", nil
}
