//go:build !linux

package main

import "syscall"

// dieWithParent does nothing, because only Linux supports it.
func dieWithParent(*syscall.SysProcAttr) {}
