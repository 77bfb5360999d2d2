// Package child runs other programs, and roles of the present program, as processes that end with this one.
package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// Process is a process that runs, or has ended. Its methods are safe for concurrent use.
type Process struct {
	*os.Process

	ended chan struct{}
}

// Start starts a command.
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = DieWithUs()
	p, started := &Process{ended: make(chan struct{})}, make(chan error)
	go func() {
		runtime.LockOSThread() // for the life of the process: see DieWithUs
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.Process = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait() // the caller sees in its log why it ended
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Freeze stops a process until SIGCONT, and returns when it has stopped.
func (p *Process) Freeze() error {
	return errors.Join(p.Signal(syscall.SIGSTOP), stopped(p.Pid))
}

// End sends a signal, also to a stopped process, and returns when the process has ended.
func (p *Process) End(signal syscall.Signal) {
	_ = p.Signal(syscall.SIGCONT) // it may have ended
	_ = p.Signal(signal)
	<-p.ended
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

const variable = "LAB_CHILD" // the role of a child, and its arguments

// Run starts a role of this program: see Main. It returns the lines that the role prints.
func Run(role string, args ...string) (*Process, *bufio.Scanner, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(context.Background(), program) //nolint:gosec // the present program
	cmd.Env, cmd.Stderr = append(os.Environ(), variable+"="+strings.Join(append([]string{role}, args...), "\n")), os.Stderr
	r, w, err := os.Pipe() // not StdoutPipe, which Wait closes before all is read
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout = w
	p, err := Start(cmd)
	_ = w.Close() // the child has its own
	return p, bufio.NewScanner(r), err
}

// Main must come first in main and TestMain. In a child it runs its role, and reports true.
func Main(stderr io.Writer, roles map[string]func(args []string) error) bool {
	args := strings.Split(os.Getenv(variable), "\n")
	role := roles[args[0]]
	if role == nil {
		return false
	}
	if err := role(args[1:]); err != nil {
		fmt.Fprintln(stderr, args[0]+":", err)
	}
	return true
}
