package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/videocatalog/lab/internal/child"
)

// process is one of the service's processes. It runs the binary several times,
// one execution after the other. Its methods are safe for concurrent use, but no one
// except the injector of faults may call those that start and stop it.
type process struct {
	name, role string
	serves     bool // clients call it
	proxy      *proxy
	environ    []string
	dir        string // directory of its log and its orders
	binary     string // for the next start
	timeline   *slog.Logger
	problem    func(Rule, string, ...any)

	mu      sync.Mutex
	current *execution // guarded by mu; nil before the first start
}

// execution is one run of the binary.
type execution struct {
	cmd      *exec.Cmd
	addr     string
	conn     *grpc.ClientConn // for clients
	private  string           // guarded by process.mu: address of the private port
	done     chan struct{}    // closed when it has ended
	expected bool             // guarded by process.mu: the lab is ending it
	killed   bool             // guarded by process.mu: the lab is ending it by SIGKILL, and in no other way
	started  time.Time
	ended    time.Time // valid once done is closed
}

func (p *process) orders() string { return filepath.Join(p.dir, p.name+".order") }

// clock returns the path of the file with the clock offset of the process.
func (p *process) clock() string { return filepath.Join(p.dir, p.name+".clock") }

// start starts the binary, and returns when its log says that it has started.
// If that fails, start tries again, 60 times in all with pauses of 0.5 s, as a
// platform does: the database may be unavailable.
func (p *process) start(ctx context.Context) error {
	var err error
	for range 60 {
		if err = p.startOnce(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		p.timeline.InfoContext(ctx, "start failed", "process", p.name, "err", err.Error())
		sleep(ctx, 500*time.Millisecond)
	}
	return err
}

func (p *process) startOnce(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(p.dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	// If the process ends before it has started, that is no problem of its own: startOnce returns an error.
	e := &execution{done: make(chan struct{}), started: time.Now(), expected: true}
	e.cmd = exec.CommandContext(context.WithoutCancel(ctx), p.binary) //nolint:gosec // we have built it
	e.cmd.Env = p.environ
	e.cmd.SysProcAttr = child.DieWithUs()
	stderr, err := e.cmd.StderrPipe()
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", p.name, err), log.Close())
	}
	started, silent := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // for the life of the process: see child.DieWithUs
		defer runtime.UnlockOSThread()
		err := e.cmd.Start()
		started <- err
		if err == nil {
			<-silent // Wait would close its output before it is read
			_ = e.cmd.Wait()
			p.ended(e)
		}
	}()
	if err := <-started; err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", p.name, err), log.Close())
	}
	addr := make(chan string, 1)
	go func() {
		defer close(silent)
		defer log.Close()
		readLog(stderr, log, func(message, at string) {
			switch message {
			case "server: started":
				select {
				case addr <- at:
				default: // already signaled
				}
			case "telemetry: private port open":
				p.mu.Lock()
				defer p.mu.Unlock()
				e.private = at
			}
		})
	}()
	p.mu.Lock()
	p.current = e
	p.mu.Unlock()
	select {
	case e.addr = <-addr:
	case <-e.done:
		return fmt.Errorf("%s ended before it had started: %s", p.name, e.cmd.ProcessState)
	case <-time.After(time.Minute):
		_ = e.cmd.Process.Kill() // it may have ended by now
		return fmt.Errorf("%s did not start within a minute", p.name)
	case <-ctx.Done():
		return ctx.Err()
	}
	conn, err := grpc.NewClient(e.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", p.name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-e.done:
		_ = conn.Close() // nobody has used it
		return fmt.Errorf("%s ended as soon as it had started: %s", p.name, e.cmd.ProcessState)
	default:
	}
	e.conn = conn
	e.expected = false
	return nil
}

// readLog copies the log of the process, and calls found with each address in
// it.
func readLog(from io.Reader, to io.Writer, found func(message, addr string)) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if _, err := io.WriteString(to, line); err != nil {
			_, _ = io.Copy(io.Discard, from) // a full disk must not block the process
			return
		}
		var said struct{ Message, Addr string }
		if strings.Contains(line, `"addr"`) && json.Unmarshal([]byte(line), &said) == nil {
			if _, port, err := net.SplitHostPort(said.Addr); err == nil {
				found(said.Message, net.JoinHostPort("127.0.0.1", port))
			}
		}
		if err != nil {
			return
		}
	}
}

// ended handles the end of an execution, before those that wait for done
// continue.
func (p *process) ended(e *execution) {
	p.mu.Lock()
	e.ended = time.Now()
	expected, killed := e.expected, e.killed
	if e.conn != nil {
		_ = e.conn.Close() // the server has ended
		e.conn = nil
	}
	p.mu.Unlock()
	p.timeline.Info("ended", "process", p.name, "how", e.cmd.ProcessState.String(), "expected", expected)
	status, ok := e.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !expected || killed && ok && status.Signal() != syscall.SIGKILL {
		p.problem(ProcessEnded, "%s: %s; see %s.log", p.name, e.cmd.ProcessState, p.name)
	}
	close(e.done)
}

// running returns the present execution, or nil.
func (p *process) running() *execution {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return nil
	}
	select {
	case <-p.current.done:
		return nil
	default:
		return p.current
	}
}

// reach returns the connection and the address of the process for clients. ok is
// false while it does not run.
func (p *process) reach() (conn *grpc.ClientConn, addr string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil || p.current.conn == nil {
		return nil, "", false
	}
	return p.current.conn, p.current.addr, true
}

// expect records that the lab will end the execution. If killed is set, any end but SIGKILL,
// such as a panic, is a problem.
func (p *process) expect(e *execution, killed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.expected, e.killed = true, killed
}

// kill kills the process, and returns the time at which it had ended.
func (p *process) kill() time.Time {
	e := p.running()
	if e == nil {
		return time.Now()
	}
	p.expect(e, true)
	_ = e.cmd.Process.Kill() // it may have ended
	<-e.done
	return e.ended
}

// signal sends a signal, if the process runs.
func (p *process) signal(s syscall.Signal) {
	if e := p.running(); e != nil {
		_ = e.cmd.Process.Signal(s) // it may have ended
	}
}

// stopBudget is the time that Cloud Run gives a process after SIGTERM.
const stopBudget = 10 * time.Second

// stop ends the process by SIGTERM, as a deployment does. A slow stop or an
// exit with an error is a problem.
func (p *process) stop() (took time.Duration) {
	e := p.running()
	if e == nil {
		return 0
	}
	p.expect(e, false)
	start := time.Now()
	_ = e.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-e.done:
		if !e.cmd.ProcessState.Success() {
			p.problem(StopFailed, "%s: %s after SIGTERM", p.name, e.cmd.ProcessState)
		}
	case <-time.After(stopBudget):
		p.problem(StopFailed, "%s still runs %s after SIGTERM", p.name, stopBudget)
		p.kill()
	}
	return time.Since(start)
}

// order writes an order for a failpoint, and waits until the process has
// carried it out. It returns false if the process does not reach the failpoint
// in time.
func (p *process) order(ctx context.Context, order string, within time.Duration) bool {
	half := p.orders() + ".half"
	if os.WriteFile(half, []byte(order), 0o600) != nil || os.Rename(half, p.orders()) != nil {
		return false
	}
	for deadline := time.Now().Add(within); time.Now().Before(deadline); sleep(ctx, 2*time.Millisecond) {
		if _, err := os.Stat(p.orders()); errors.Is(err, os.ErrNotExist) {
			return true
		}
	}
	return os.Remove(p.orders()) != nil // the process has removed it meanwhile
}

// sleep waits for d and returns true. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool { return gax.Sleep(ctx, d) == nil }
