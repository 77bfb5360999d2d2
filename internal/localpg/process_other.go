//go:build !linux

package localpg

import "syscall"

// dieWithParent can do nothing here.
func dieWithParent(*syscall.SysProcAttr) {}

// memoryDir is tempDir: there is no folder in memory at a known place.
func memoryDir() string { return tempDir }
