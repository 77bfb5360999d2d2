//go:build !linux

package main

import "errors"

// divideCPUs returns an error: only Linux can divide the CPUs.
func divideCPUs(int) (undo func() error, err error) {
	return nil, errors.New("CPUs can be divided on Linux only")
}
