package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// command prepares a program in its own process group. When ctx ends, that group gets the signal end, and after
// patience the program is killed. Ctrl-C does not reach the program; on Linux it dies with us. The caller must start it from
// a locked thread.
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

// startChild starts a program, and returns a channel that is closed when it has ended.
func startChild(cmd *exec.Cmd) (<-chan struct{}, error) {
	done, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // while it runs; see dieWithParent
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its ProcessState says how it ended
			close(done)
		}
	}()
	return done, <-started
}

// Program is a program that belongs to the stack.
type Program struct {
	Name  string   // on the screen; its output goes to NAME.log in the state folder
	Path  string   // of the program
	Args  []string // its arguments
	Env   []string // its environment; default: the one of cmd/dev
	Ready string   // a URL that returns 200 when it is ready
}

// Run starts a program and waits until it is ready. It runs until the stack stops. If it ends before, the stack stops.
func (s *Stack) Run(ctx context.Context, p Program) error {
	s.screen.begin("starting " + p.Name)
	path := s.log(p.Name)
	log, err := newLog(path, s.screen)
	if err != nil {
		return fmt.Errorf("%w: choose another folder with --state DIR", err)
	}
	s.AtStop(log.file.Close)
	// It ends in stop, not with ctx at Ctrl-C.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	cmd := command(life, syscall.SIGTERM, stopTimeout, p.Path, p.Args...)
	cmd.Dir, cmd.Env = s.Root, p.Env
	cmd.Stdout, cmd.Stderr = log, log
	done, err := startChild(cmd)
	if err != nil {
		end()
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	state := func() *os.ProcessState { return cmd.ProcessState }
	s.watch(p.Name, path, done, state, func() error { return s.stopProgram(p.Name, cmd, done, end) })
	if err := awaitReady(ctx, p.Ready, readyTimeout); err != nil {
		return fmt.Errorf("%s %w: find the reason in %s", p.Name, err, s.short(path))
	}
	s.screen.done(p.Name, "ready, pid "+strconv.Itoa(cmd.Process.Pid))
	return nil
}

// watch stops the stack if a program ends before. stop stops the program at the end of the stack.
func (s *Stack) watch(name, log string, done <-chan struct{}, state func() *os.ProcessState, stop func() error) {
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		<-done
		s.end(fmt.Errorf("%s ended by itself (%s); its log, %s, ends:%s", name, state(), s.short(log), tail(log)))
	}()
	s.AtStop(func() error {
		defer func() { <-watching }()
		return stop()
	})
}

// stopProgram ends a program and waits for it. After a second signal it kills the program. It returns no error for
// a program that had already ended.
func (s *Stack) stopProgram(name string, cmd *exec.Cmd, done <-chan struct{}, end func()) error {
	defer end()
	select {
	case <-done:
		return nil
	default:
	}
	end()
	select {
	case <-done:
	case <-s.killed.Done():
		_ = cmd.Process.Kill() // fails only if it has ended
		<-done
	}
	switch {
	case cmd.ProcessState.Success():
		return nil
	case s.killed.Err() != nil:
		return fmt.Errorf("%s was killed before it had finished", name)
	}
	return fmt.Errorf("%s did not end well (%s): find the reason in %s", name, cmd.ProcessState, s.short(s.log(name)))
}

func (s *Stack) log(name string) string {
	return filepath.Join(s.State, strings.ToLower(name)+".log")
}

func awaitReady(ctx context.Context, address string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last := errors.New("no response")
	for {
		err := probe(ctx, address)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // otherwise the timeout is the problem
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("is not ready after %s (%w)", patience, last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// probe returns why a health check fails.
func probe(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 2 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return errors.Unwrap(err) // without the address, which is known
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// repeatAfter is the shortest time between two equal messages on the screen.
const repeatAfter = 10 * time.Second

// logFile receives the output of a program. It writes everything to a file, and warnings and errors as one short
// line to the screen. Only one goroutine may write to it.
type logFile struct {
	file   *os.File
	screen *screen
	rest   []byte               // the last line, not complete yet
	shown  map[string]time.Time // when a message was last shown
}

func newLog(path string, screen *screen) (*logFile, error) {
	file, err := os.Create(path) //nolint:gosec // in the folder that the user has chosen
	if err != nil {
		return nil, err
	}
	return &logFile{file: file, screen: screen, shown: make(map[string]time.Time)}, nil
}

// Write never fails, so that a full disk does not stop the program.
func (l *logFile) Write(p []byte) (int, error) {
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

func (l *logFile) show(line []byte) {
	severity, text := summarize(line)
	style, ok := map[string]style{"WARNING": yellow, "ERROR": red}[severity]
	if !ok || time.Since(l.shown[text]) < repeatAfter {
		return
	}
	l.shown[text] = time.Now()
	l.screen.warn(style, text)
}

// summarize returns the severity and a short text of a log line. A line in another format, such as one of a panic,
// has no severity.
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
