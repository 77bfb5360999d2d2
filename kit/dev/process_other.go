//go:build !linux

package dev

import "syscall"

// dieWithParent does nothing, because only Linux supports it.
func dieWithParent(*syscall.SysProcAttr) {}
