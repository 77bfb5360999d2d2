package main

import "syscall"

// dieWithParent has the kernel kill the child when our process dies. To be
// exact, when the thread dies that forked it (prctl(2), PR_SET_PDEATHSIG): so
// that thread must be locked to a goroutine that outlives the child, or the Go
// runtime could end it earlier.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
