//go:build !linux

package main

import "syscall"

// dieWithParent can do nothing here.
func dieWithParent(*syscall.SysProcAttr) {}
