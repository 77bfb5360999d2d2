package child

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// DieWithUs makes the kernel kill a child when the thread that started it ends
// (prctl(2), PR_SET_PDEATHSIG). So a lab that is killed leaves no processes
// behind.
func DieWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped waits until each thread of a child has stopped, which is after SIGSTOP was sent.
func stopped(pid int) error {
	return unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
}
