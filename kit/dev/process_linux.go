package dev

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that started it
// ends (prctl(2), PR_SET_PDEATHSIG). That thread must be locked to a goroutine
// that outlives the child. Otherwise the Go runtime could end the thread, and
// so the child, too early.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
