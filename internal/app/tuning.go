//go:build !chaos

package app

// tune does nothing in this build. Only the server of the fault lab and of tests has
// variables for the Config of the packages.
func tune(*config, map[string]string) error { return nil }
