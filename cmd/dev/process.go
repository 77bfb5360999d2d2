package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// command prepares a program that is ended, with its children, by a signal when
// ctx ends, and killed if that does not help in time. As a process group of its
// own it gets no Ctrl-C; on Linux it dies with us. It must be started from a
// locked thread.
func command(ctx context.Context, end syscall.Signal, patience time.Duration, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // it is go, or what we have built
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

// output runs a program to its end, and returns what it printed.
func output(cmd *exec.Cmd) (string, error) {
	runtime.LockOSThread() // as long as it runs; see dieWithParent
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// child is a program that runs beside us.
type child struct {
	cmd  *exec.Cmd
	end  context.CancelFunc // of the context of cmd
	done chan struct{}      // closed when it has ended
	err  error              // how it ended; read it after done
}

// startChild starts a program whose context end ends.
func startChild(cmd *exec.Cmd, end context.CancelFunc) (*child, error) {
	c := &child{cmd: cmd, end: end, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // as long as it runs; see dieWithParent
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

// stop ends it, at once if killed is done, and waits for that. The error is how
// it ended if not as it should; nil if it had ended before.
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
	if errors.Is(c.err, context.Canceled) { // it ended well, because of end
		return nil
	}
	return c.err
}

// repeatAfter is how long the screen is spared a message that it has shown.
const repeatAfter = 10 * time.Second

// serverLog is where the server's output goes: all of it into a file, and what
// is worth knowing as one short line to the screen. It is written to by one
// goroutine.
type serverLog struct {
	file   *os.File
	screen *screen
	rest   []byte               // of the last line, which has no end yet
	shown  map[string]time.Time // by message
}

func newServerLog(path string, screen *screen) (*serverLog, error) {
	file, err := os.Create(path) //nolint:gosec // in the folder the user has chosen
	if err != nil {
		return nil, err
	}
	return &serverLog{file: file, screen: screen, shown: make(map[string]time.Time)}, nil
}

// Write never fails: the server must not stop because a disk is full.
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

// summarize returns what a line of the log says, in short; one that is not the
// server's, such as one of a panic, has no severity.
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

// tail is the end of a log, to be put behind an error.
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
