package chaos

import "syscall"

// dieWithUs makes the kernel kill a child when the thread that started it ends
// (prctl(2), PR_SET_PDEATHSIG). So a lab that is killed leaves no processes
// behind.
func dieWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
