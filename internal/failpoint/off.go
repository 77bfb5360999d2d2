//go:build !chaos

package failpoint

// Hit marks a point in the code. In this build it does nothing.
func Hit(string) {}
