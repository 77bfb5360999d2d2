//go:build !linux

package main

import "testing"

// inImage needs Linux, like the image. On other systems it runs nothing and returns a successful
// result, and the log says so.
func inImage(t *testing.T, _ string, _ []string, args ...string) (string, error) {
	t.Helper()
	t.Logf("not on Linux: server %v is not run", args)
	return "", nil
}
