//go:build !unix

package pubsublocal

import "os"

// lock does nothing: here it is up to the user that one server uses a folder.
func lock(*os.File) error { return nil }
