//go:build !linux

package chaos

import "syscall"

// dieWithUs works on Linux only: on other systems, a lab that is killed leaves
// its children running.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
