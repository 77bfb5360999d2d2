//go:build !linux

package chaos

import "syscall"

// dieWithUs is for Linux only: elsewhere a lab that is killed leaves its
// children behind.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
