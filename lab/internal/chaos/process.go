package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// process is one of the service's processes: a place that is taken by one
// run of the binary after the other. Its methods may be called from several
// goroutines, but those that start and stop are the injector's.
type process struct {
	name, role string
	serves     bool // clients call it
	proxy      *proxy
	environ    []string
	dir        string // for its log and its orders
	binary     string // of the next start
	timeline   *timeline
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
	expected bool             // guarded by process.mu: somebody wants it to end
	killed   bool             // guarded by process.mu: by SIGKILL, and in no other way
	started  time.Time
	ended    time.Time // valid once done is closed
}

func (p *process) orders() string { return filepath.Join(p.dir, p.name+".order") }

// clock is the file that says what the clock of the process is wrong by.
func (p *process) clock() string { return filepath.Join(p.dir, p.name+".clock") }

// start starts the binary and returns once it says that it has started. A
// process that ends before that is started again, a few times: the database
// may be away for longer than it waits.
func (p *process) start(ctx context.Context) error {
	var err error
	for range 5 {
		if err = p.startOnce(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		p.timeline.add("start failed", "process", p.name, "err", err.Error())
	}
	return err
}

func (p *process) startOnce(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(p.dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	// Expected to end: until it has started, whoever started it judges.
	e := &execution{done: make(chan struct{}), started: time.Now(), expected: true}
	e.cmd = exec.CommandContext(context.WithoutCancel(ctx), p.binary) //nolint:gosec // we have built it
	e.cmd.Env = p.environ
	e.cmd.SysProcAttr = dieWithUs()
	stderr, err := e.cmd.StderrPipe()
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", p.name, err), log.Close())
	}
	started, silent := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // as long as it lives; see dieWithUs
		defer runtime.UnlockOSThread()
		err := e.cmd.Start()
		started <- err
		if err == nil {
			<-silent // its output is read, which Wait would close
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
				default: // it has said so before
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

// readLog keeps what the process says, and tells the addresses that it finds in it.
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

// ended reports the end of an execution before anybody who waits for it goes
// on.
func (p *process) ended(e *execution) {
	p.mu.Lock()
	e.ended = time.Now()
	expected, killed := e.expected, e.killed
	if e.conn != nil {
		_ = e.conn.Close() // nobody is there any more
		e.conn = nil
	}
	p.mu.Unlock()
	p.timeline.add("ended", "process", p.name, "how", e.cmd.ProcessState.String(), "expected", expected)
	status, ok := e.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !expected || killed && ok && status.Signal() != syscall.SIGKILL {
		p.problem(ProcessEnded, "%s: %s; see %s.log", p.name, e.cmd.ProcessState, p.name)
	}
	close(e.done)
}

// running returns the execution that is under way, or nil.
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

// reach returns how clients reach the process; false while it is away.
func (p *process) reach() (conn *grpc.ClientConn, addr string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil || p.current.conn == nil {
		return nil, "", false
	}
	return p.current.conn, p.current.addr, true
}

// expect says that the process will end because somebody wants it to.
func (p *process) expect(e *execution) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.expected = true
}

// condemn says that the process will be killed. One that ends in another way
// meanwhile, as by a panic, does so unasked.
func (p *process) condemn(e *execution) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.expected, e.killed = true, true
}

// kill ends the process at once, and returns when it had ended.
func (p *process) kill() time.Time {
	e := p.running()
	if e == nil {
		return time.Now()
	}
	p.condemn(e)
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

// stopBudget is what Cloud Run gives a process after SIGTERM.
const stopBudget = 10 * time.Second

// stop ends the process as a deployment does, and complains when that takes
// too long or ends with an error.
func (p *process) stop() (took time.Duration) {
	e := p.running()
	if e == nil {
		return 0
	}
	p.expect(e)
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

// order tells the process what to do to itself at a point, and waits until it
// has done so; false when it does not come there in time.
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
	return os.Remove(p.orders()) != nil // removed by the process this very moment
}

// sleep waits and returns true, or false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
