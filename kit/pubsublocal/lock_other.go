//go:build !unix

package pubsublocal

import "os"

// lock does nothing on this system. The user must take care that only one server uses a directory.
func lock(*os.File) error { return nil }
