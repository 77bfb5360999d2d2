//go:build !linux

package localpg

import "syscall"

// dieWithParent does nothing, because only Linux supports it.
func dieWithParent(*syscall.SysProcAttr) {}

// memoryDir returns tempDir, because these systems have no well-known folder in memory.
func memoryDir() string { return tempDir }
