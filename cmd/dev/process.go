package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// command prepares a program in its own process group. When ctx ends, that
// group gets the signal end, and after patience it is killed. Ctrl-C does not
// reach the program; on Linux it dies with us. The caller must start it from a
// locked thread.
func command(ctx context.Context, end syscall.Signal, patience time.Duration, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // go, or a program that we have built
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	cmd.WaitDelay = patience
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, end)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	return cmd
}

// output runs a program until it ends, and returns its output.
func output(cmd *exec.Cmd) (string, error) {
	runtime.LockOSThread() // while it runs; see dieWithParent
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// child is a running program.
type child struct {
	cmd  *exec.Cmd
	end  context.CancelFunc // cancels the context of cmd
	done chan struct{}      // closed when it has ended
	err  error              // result; read it after done
}

// startChild starts a program. end must cancel its context.
func startChild(cmd *exec.Cmd, end context.CancelFunc) (*child, error) {
	c := &child{cmd: cmd, end: end, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // while it runs; see dieWithParent
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		end()
		return nil, err
	}
	return c, nil
}

// stop ends the program and waits for it; if killed is done, it kills the
// program. It returns the program's error, or nil if the program ended normally
// or before the call.
func (c *child) stop(killed context.Context) error {
	select {
	case <-c.done:
		c.end()
		return nil
	default:
	}
	c.end()
	select {
	case <-c.done:
	case <-killed.Done():
		_ = c.cmd.Process.Kill() // fails only if it has ended
		<-c.done
	}
	if errors.Is(c.err, context.Canceled) { // it ended normally after end
		return nil
	}
	return c.err
}

// repeatAfter is the shortest time between two equal messages on the screen.
const repeatAfter = 10 * time.Second

// serverLog receives the server's output. It writes everything to a file, and
// warnings and errors as one short line to the screen. Only one goroutine may
// write to it.
type serverLog struct {
	file   *os.File
	screen *screen
	rest   []byte               // the last line, without its end
	shown  map[string]time.Time // when a message was last shown
}

func newServerLog(path string, screen *screen) (*serverLog, error) {
	file, err := os.Create(path) //nolint:gosec // in the folder that the user has chosen
	if err != nil {
		return nil, err
	}
	return &serverLog{file: file, screen: screen, shown: make(map[string]time.Time)}, nil
}

// Write writes output of the server. It never fails, so that a full disk does
// not stop the server.
func (l *serverLog) Write(p []byte) (int, error) {
	_, _ = l.file.Write(p)
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.rest = rest
		l.show(line)
	}
}

func (l *serverLog) show(line []byte) {
	severity, text := summarize(line)
	style := yellow
	switch severity {
	case "WARNING":
	case "ERROR":
		style = red
	default:
		return
	}
	if time.Since(l.shown[text]) < repeatAfter {
		return
	}
	l.shown[text] = time.Now()
	l.screen.warn(style, text)
}

// summarize returns the severity and a short text of a log line. A line in
// another format, such as one of a panic, has no severity.
func summarize(line []byte) (severity, text string) {
	var entry struct{ Severity, Message, Err string }
	if err := json.Unmarshal(line, &entry); err != nil || entry.Message == "" {
		return "", string(line)
	}
	if entry.Err == "" {
		return entry.Severity, entry.Message
	}
	return entry.Severity, entry.Message + ": " + entry.Err
}

// tail returns the end of a log, to be appended to an error.
func tail(path string) string {
	const lines, length = 12, 300
	content, err := os.ReadFile(path) //nolint:gosec // it is our log
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(content)), "\n")
	var out strings.Builder
	for _, line := range all[max(0, len(all)-lines):] {
		severity, text := summarize([]byte(line))
		out.WriteString("\n\t" + shorten(strings.TrimSpace(severity+" "+text), length))
	}
	return out.String()
}

// openPrivatePort chooses the address of the server's private port.
func (s *stack) openPrivatePort(ctx context.Context) (err error) {
	s.private, err = freeAddr(ctx)
	return err
}

// freeAddr returns a free TCP address of this machine.
func freeAddr(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
