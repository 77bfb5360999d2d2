//go:build !chaos

package failpoint

// Hit says that the process is at a point. In this build nothing happens.
func Hit(string) {}
