package chaos

import "syscall"

// dieWithUs has the kernel end a child when the thread that started it dies
// (prctl(2), PR_SET_PDEATHSIG): a lab that is killed leaves nothing behind.
func dieWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
