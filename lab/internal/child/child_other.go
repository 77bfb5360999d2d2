//go:build !linux

package child

import "syscall"

// DieWithUs works on Linux only: on other systems, a lab that is killed leaves
// its children running.
func DieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopped does not wait.
func stopped(int) error { return nil }
