package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localbroker"
)

// patience is how long a step may take on a machine that is busy.
const patience = 2 * time.Minute

// program is a copy of this test binary, at a path such as go run uses. With isDev in its
// environment it runs cmd/dev of the service in the folder service.
var program, service string

const isDev = "DEV_TEST_IS_DEV"

// server is the source of the service's server. With NOT_READY in its environment the server never becomes ready.
const server = `package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 {
		if os.Getenv("LOG_LEVEL") != "" {
			fmt.Fprintln(os.Stderr, "server: LOG_LEVEL must be one of four")
			os.Exit(2)
		}
		fmt.Println("schema is at version 1")
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Fprintln(os.Stderr, "{\"severity\":\"WARNING\",\"message\":\"server: started\"}")
	http.HandleFunc("/health/ready", func(w http.ResponseWriter, _ *http.Request) {
		if os.Getenv("NOT_READY") != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Addr: "127.0.0.1:" + os.Getenv("PORT")}
	go server.ListenAndServe()
	<-ctx.Done()
	server.Shutdown(context.Background())
}
`

// config is the configuration of the service, which has a part that cannot run and one that ends at once.
var config = Config{
	Name: "stand-in", Server: "./cmd/server",
	Topics: func() ([]localbroker.Topic, error) {
		return []localbroker.Topic{{Name: "letters", Schema: "syntax = \"proto3\";\nmessage Letter { string text = 1; }", Subscriptions: []string{"letters.reader"}}}, nil
	},
	Parts: []Part{
		{Flag: "absent", Help: "has no program", Check: func() error { return errors.New("--absent needs a program") }},
		{Flag: "short", Help: "ends at once", Start: func(ctx context.Context, s *Stack) error {
			return s.Run(ctx, Program{Name: "Short", Path: "sh", Args: []string{"-c", "echo unknown flag; exit 3"}, Ready: "http://127.0.0.1:1/"})
		}},
	},
}

func TestMain(m *testing.M) {
	if os.Getenv(isDev) != "" {
		Main(config)
		return
	}
	folder, err := os.MkdirTemp("", "dev-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	program = filepath.Join(folder, "go-build1", "b001", "exe", "dev")
	self, err := os.ReadFile(os.Args[0])
	service = filepath.Join(folder, "service")
	command := filepath.Join(service, "cmd", "server")
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(program), 0o755), os.WriteFile(program, self, 0o755), os.MkdirAll(command, 0o755),
		os.WriteFile(filepath.Join(service, "go.mod"), []byte("module example.com/standin\n"), 0o644),
		os.WriteFile(filepath.Join(command, "main.go"), []byte(server), 0o644)); err != nil {
		panic(err)
	}
	m.Run()
}

// session is a running cmd/dev.
type session struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	done   chan struct{} // closed when it has ended

	mu     sync.Mutex
	screen bytes.Buffer
}

func (s *session) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.Write(p)
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.String()
}

// start starts cmd/dev on a free port. It removes settings from the environment, so
// that cmd/dev uses no database or Pub/Sub that already runs here.
func start(t *testing.T, environ []string, args ...string) *session {
	t.Helper()
	return startCommand(t, environ, exec.Command(program, args...))
}

func startCommand(t *testing.T, environ []string, cmd *exec.Cmd) *session {
	t.Helper()
	s := &session{cmd: cmd, done: make(chan struct{})}
	settings := regexp.MustCompile(`^(PORT|ROLES|LOG_LEVEL|DATABASE_URL|POSTGRES_BIN_DIR|(PUBSUB|OUTBOX|CONSUMER|SERVER|TELEMETRY)_\w+)=`)
	s.cmd.Env = append(slices.DeleteFunc(os.Environ(), settings.MatchString), "PORT=0", isDev+"=1")
	s.cmd.Env = append(s.cmd.Env, environ...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = service, s, &s.stderr
	must(t, s.cmd.Start())
	go func() {
		_ = s.cmd.Wait() // how it ended is in ProcessState
		close(s.done)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		<-s.done
	})
	return s
}

// await waits until text is on the screen.
func (s *session) await(t *testing.T, text string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !strings.Contains(s.text(), text) {
		select {
		case <-s.done:
			if strings.Contains(s.text(), text) {
				return
			}
			t.Fatalf("cmd/dev ended (%s) and never said %q:\n%s%s", s.cmd.ProcessState, text, s.text(), &s.stderr)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("cmd/dev did not say %q:\n%s", text, s.text())
		}
	}
}

// end waits until cmd/dev has ended, and returns its exit code.
func (s *session) end(t *testing.T) int {
	t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		t.Fatalf("cmd/dev does not end:\n%s", s.text())
	}
	return s.cmd.ProcessState.ExitCode()
}

// field returns the text on the screen that the group of a regular expression matches.
func (s *session) field(t *testing.T, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(s.text())
	if found == nil {
		t.Fatalf("no %s on the screen:\n%s", pattern, s.text())
	}
	return found[1]
}

func (s *session) addr(t *testing.T) string {
	t.Helper()
	return "localhost:" + s.field(t, `http://localhost:(\d+)/`)
}

// families returns the running processes by parent.
func families(t *testing.T) map[int][]int {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		t.Fatalf("ps: %v", err)
	}
	children := make(map[int][]int)
	for line := range strings.Lines(string(out)) {
		var pid, parent int
		var state string
		if _, err := fmt.Sscan(line, &pid, &parent, &state); err != nil {
			t.Fatalf("ps: %q: %v", line, err)
		}
		if !strings.HasPrefix(state, "Z") { // Z: it has ended, but its parent has not noticed yet
			children[parent] = append(children[parent], pid)
		}
	}
	return children
}

// descendants returns the processes that cmd/dev has started.
func (s *session) descendants(t *testing.T) []int {
	t.Helper()
	children := families(t)
	var all []int
	for next := []int{s.cmd.Process.Pid}; len(next) > 0; next = next[1:] {
		all = append(all, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	if len(all) < 3 { // the server, PostgreSQL, and its children
		t.Errorf("descendants of cmd/dev: %v, want the server and PostgreSQL with its children", all)
	}
	return all
}

// wantGone waits a moment for processes to end.
func wantGone(t *testing.T, pids []int) {
	t.Helper()
	var left []int
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left = nil
		for _, running := range families(t) {
			for _, pid := range running {
				if slices.Contains(pids, pid) {
					left = append(left, pid)
				}
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("processes that cmd/dev left: %v", left)
}

// stateDir makes a folder that the user who runs PostgreSQL may enter, also
// when we are root.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dev-test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s: %s, %v", url, response.Status, body, err)
	}
	return string(body)
}

// exec runs a statement on the database of a session.
func (s *session) exec(t *testing.T, sql string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.field(t, `psql '(.*)'`))
	must(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), sql)
	return err
}

// The life of one state folder: everything starts and responds, and data stays until
// --fresh. However cmd/dev ends, nothing is left running.
func TestStack(t *testing.T) {
	t.Parallel()
	state := stateDir(t)

	t.Run("run", func(t *testing.T) {
		s := start(t, []string{"PGSERVICE=none", "PGOPTIONS=--no-such", "PGTZ=none"}, "--state", state)
		s.await(t, "Ctrl-C stops everything")
		get(t, "http://"+s.addr(t)+"/health/ready")
		if err := s.exec(t, "CREATE TABLE kept ()"); err != nil {
			t.Error(err)
		}
		if want := "schema is at version 1"; !strings.Contains(s.text(), want) {
			t.Errorf("the screen does not say %q:\n%s", want, s.text())
		}
		if i := strings.IndexFunc(s.text(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }); i >= 0 {
			t.Errorf("the screen is no terminal, and has a control character: %q", s.text()[i:])
		}

		second := start(t, nil, "--state", state)
		if code := second.end(t); code != 1 {
			t.Errorf("exit code of a second cmd/dev on the folder: %d, want 1", code)
		}
		if want := fmt.Sprintf("(pid %d)", s.cmd.Process.Pid); !strings.Contains(second.stderr.String(), want) {
			t.Errorf("a second cmd/dev on the folder says %q, want: %s", &second.stderr, want)
		}

		family := s.descendants(t)
		must(t, s.cmd.Process.Signal(syscall.SIGTERM))
		if code := s.end(t); code != 0 {
			t.Errorf("exit code after SIGTERM: %d, want 0: %s", code, &s.stderr)
		}
		wantGone(t, family)
		if log, err := os.ReadFile(filepath.Join(state, "postgres", "postgres.log")); err != nil || !strings.Contains(string(log), "fast shutdown") {
			t.Errorf("PostgreSQL's log = %q, %v, want a fast shutdown, with a checkpoint", log, err)
		}
	})

	for name, log := range map[string]string{"server": "server: started", "PostgreSQL": "ready to accept connections"} {
		t.Run(name+" is killed", func(t *testing.T) {
			s := start(t, nil, "--state", state)
			s.await(t, "Ctrl-C stops everything")
			if err := s.exec(t, "TABLE kept"); err != nil {
				t.Errorf("the table of the session before: %v", err)
			}
			family := s.descendants(t)
			pid := s.field(t, `ready, pid (\d+)`)
			if name == "PostgreSQL" {
				text, err := os.ReadFile(filepath.Join(state, "postgres", "data", "postmaster.pid"))
				must(t, err)
				pid, _, _ = strings.Cut(string(text), "\n")
			}
			number, _ := strconv.Atoi(pid)
			must(t, syscall.Kill(number, syscall.SIGKILL))
			if code := s.end(t); code != 1 {
				t.Errorf("exit code = %d, want 1", code)
			}
			for _, want := range []string{name + " ended by itself (signal: killed)", log} {
				if !strings.Contains(s.stderr.String(), want) {
					t.Errorf("stderr = %q, want: %s", &s.stderr, want)
				}
			}
			wantGone(t, family)
		})
	}

	t.Run("a part ends by itself", func(t *testing.T) {
		s := start(t, nil, "--state", state, "--fresh", "--short")
		if code := s.end(t); code != 1 {
			t.Errorf("exit code = %d, want 1", code)
		}
		for _, want := range []string{"Short ended by itself (exit status 3)", "short.log", "unknown flag"} {
			if !strings.Contains(s.stderr.String(), want) {
				t.Errorf("stderr = %q, want: %s", &s.stderr, want)
			}
		}
		if !strings.HasSuffix(s.text(), "Stopped.\n") {
			t.Errorf("the screen does not end with Stopped:\n%s", s.text())
		}
	})

	t.Run("interrupted", func(t *testing.T) {
		s := start(t, []string{"NOT_READY=1"}, "--state", state)
		s.await(t, "server: started")
		must(t, s.cmd.Process.Signal(os.Interrupt))
		if code := s.end(t); code != 1 || s.stderr.String() != "dev: interrupted\n" {
			t.Errorf("interrupted while it starts: exit code %d, %q, want 1, interrupted", code, &s.stderr)
		}
	})

	if runtime.GOOS == "linux" { // elsewhere nothing ends the children of a killed process
		t.Run("killed", func(t *testing.T) {
			s := start(t, nil, "--state", state)
			s.await(t, "Ctrl-C stops everything")
			if err := s.exec(t, "TABLE kept"); err == nil {
				t.Error("the table is still there after --fresh")
			}
			family := s.descendants(t)
			must(t, s.cmd.Process.Kill())
			s.end(t)
			wantGone(t, family)
		})
	}

	t.Run("go run is terminated alone", func(t *testing.T) {
		goRun := exec.Command("sh", "-c", `"$0" "$@"; true`, program, "--state", state)
		s := startCommand(t, nil, goRun)
		s.await(t, "Ctrl-C stops everything")
		family := s.descendants(t)
		must(t, s.cmd.Process.Signal(syscall.SIGTERM))
		s.end(t)
		wantGone(t, family)
		if !strings.HasSuffix(s.text(), "Stopped.\n") {
			t.Errorf("the screen does not end with Stopped:\n%s", s.text())
		}
	})
}

// If cmd/dev cannot start, it prints one sentence with the remedy, and exits with code 1.
func TestStartError(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", ":0")
	must(t, err)
	t.Cleanup(func() { taken.Close() }) // after the parallel subtests
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	dir := stateDir(t)
	file, empty, damaged := filepath.Join(dir, "file"), filepath.Join(dir, "empty"), filepath.Join(dir, "damaged")
	must(t, errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(empty, 0o755), os.MkdirAll(filepath.Join(damaged, "postgres", "data"), 0o755)))
	goOnly := filepath.Join(dir, "path")
	if path, err := exec.LookPath("go"); err != nil || errors.Join(os.Mkdir(goOnly, 0o755), os.Symlink(path, filepath.Join(goOnly, "go"))) != nil {
		t.Fatal(path, err)
	}
	for _, test := range []struct {
		name    string
		environ []string
		args    []string
		want    []string
	}{
		{"wrong setting", []string{"LOG_LEVEL=verbose"}, []string{"--state", filepath.Join(dir, "wrong")}, []string{"LOG_LEVEL must be one of four\n"}},
		{"port in use", []string{"PORT=" + port}, []string{"--state", dir}, []string{"port " + port + " is in use", "PORT="}},
		{"no port", []string{"PORT=http"}, nil, []string{`PORT is "http"`, "number"}},
		{"state is a file", nil, []string{"--state", file}, []string{file, "not a directory", "--state DIR"}},
		{"state cannot be made", nil, []string{"--state", filepath.Join(file, "below")}, []string{file, "--state DIR"}},
		{"damaged data", nil, []string{"--state", damaged}, []string{"PG_VERSION", "--fresh"}},
		{"no PostgreSQL", []string{"POSTGRES_BIN_DIR=" + empty, "PATH=" + goOnly}, []string{"--state", filepath.Join(dir, "new")}, []string{"no such file", "POSTGRES_BIN_DIR", "DATABASE_URL"}},
		{"no database server", []string{"DATABASE_URL=postgres://u:secret@127.0.0.1:1/x"}, []string{"--state", filepath.Join(dir, "new2")}, []string{"refused", "unset DATABASE_URL"}},
		{"fresh with a database of one's own", []string{"DATABASE_URL=postgres://u:secret@127.0.0.1:1/x"}, []string{"--fresh"}, []string{"--fresh", "unset DATABASE_URL"}},
		{"absent part", nil, []string{"--absent"}, []string{"--absent needs a program"}},
		{"unknown flag", nil, []string{"--loud"}, []string{"-loud", "--help"}},
		{"unknown argument", nil, []string{"run"}, []string{`"run"`, "--help"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, test.environ, test.args...)
			if code := s.end(t); code != 1 {
				t.Errorf("exit code = %d, want 1", code)
			}
			got := s.stderr.String()
			for _, want := range append(test.want, "dev: ") {
				if !strings.Contains(got, want) {
					t.Errorf("stderr = %q, want: %s", got, want)
				}
			}
			if strings.Count(got, "\n") != 1 || strings.Contains(got, "secret") {
				t.Errorf("stderr = %q, want one line without secrets", got)
			}
		})
	}
}

// Without --allowed-hosts, the server and Pub/Sub listen on the loopback interface only.
func TestAllowedHosts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		allowed string
		args    []string
		open    bool
	}{
		{"", nil, false},
		{"other.test,dev.test", []string{"--allowed-hosts", "other.test,dev.test"}, true},
		{"*", []string{"--allowed-hosts", "*"}, true},
	} {
		t.Run(test.allowed, func(t *testing.T) {
			t.Parallel()
			opts, err := parseOptions(config, test.args, []string{"PORT=0", "ALLOWED_HOSTS=elsewhere.test"})
			must(t, err)
			s := &Stack{State: stateDir(t), config: config, options: opts, screen: &screen{out: io.Discard}}
			t.Cleanup(func() {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			})
			must(t, errors.Join(s.holdPort(t.Context()), s.openPubSub(t.Context())))
			if got := (options{environ: s.Environment()}).getenv("ALLOWED_HOSTS"); got != test.allowed {
				t.Errorf("the server gets ALLOWED_HOSTS=%s, want %q", got, test.allowed)
			}
			if runtime.GOOS != "linux" { // elsewhere the loopback interface has only one IPv4 address
				return
			}
			for name, addr := range map[string]string{"the server": s.addr, "Pub/Sub": s.pubsub} {
				conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.Replace(addr, "127.0.0.1:", "127.0.0.2:", 1))
				if err == nil {
					conn.Close()
				}
				if all := err == nil; all != test.open {
					t.Errorf("%s listens on more than 127.0.0.1: %t, want %t", name, all, test.open)
				}
			}
		})
	}
}

// Data of Pub/Sub that cannot be read is an error with its remedy, --fresh.
func TestFreshPubSub(t *testing.T) {
	t.Parallel()
	state := stateDir(t)
	file := filepath.Join(state, "pubsub.data")
	must(t, os.WriteFile(file, []byte("damaged"), 0o600))
	for _, fresh := range []bool{false, true} {
		s := &Stack{State: state, config: config, options: options{fresh: fresh}, screen: &screen{out: io.Discard}}
		err := errors.Join(s.openPubSub(t.Context()), s.stop())
		if opened := err == nil; opened != fresh || !fresh && !strings.Contains(err.Error(), "--fresh") {
			t.Errorf("with --fresh=%t: %v, want an error that names --fresh only without it", fresh, err)
		}
	}
}

// A server that does not become ready is given up, with the reason.
func TestAwaitReady(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	answers := make(chan int, 100)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		code := http.StatusServiceUnavailable
		select {
		case code = <-answers:
		default:
		}
		w.WriteHeader(code)
	})}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	url := "http://" + listener.Addr().String()

	if err := awaitReady(t.Context(), url, 2*time.Second); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("awaitReady() = %v, want: 503", err)
	}
	answers <- http.StatusServiceUnavailable
	answers <- http.StatusOK
	if err := awaitReady(t.Context(), url, patience); err != nil {
		t.Errorf("awaitReady() = %v, want nil", err)
	}
	server.Close()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve() = %v, want http.ErrServerClosed", err)
	}
	if err := awaitReady(t.Context(), url, 2*time.Second); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("awaitReady() without a server = %v, want: refused", err)
	}
}

// The file gets all of the server's output. The screen gets one short line for
// each warning and error, but not for one that repeats within seconds.
func TestLog(t *testing.T) {
	t.Parallel()
	var shown bytes.Buffer
	path := filepath.Join(t.TempDir(), "log")
	log, err := newLog(path, &screen{out: &shown})
	must(t, err)
	defer log.file.Close()
	all := `{"severity":"INFO","message":"started"}
{"severity":"ERROR","message":"outbox: pass failed","err":"dial\nrefused` + strings.Repeat("!", 300) + `"}
{"severity":"ERROR","message":"outbox: pass failed","err":"dial\nrefused` + strings.Repeat("!", 300) + `"}
panic: no JSON
{"severity":"WARNING","message":"slow"}
`
	for _, chunk := range []string{all[:7], all[7:100], all[100:]} {
		if n, err := log.Write([]byte(chunk)); n != len(chunk) || err != nil {
			t.Errorf("Write() = %d, %v", n, err)
		}
	}
	if kept, err := os.ReadFile(path); err != nil || string(kept) != all {
		t.Errorf("file = %q, %v, want everything", kept, err)
	}
	lines := strings.Split(strings.TrimSpace(shown.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], " outbox: pass failed: dial refused!!!") || !strings.HasSuffix(lines[1], " slow") {
		t.Fatalf("the screen shows %q, want one error and one warning", lines)
	}
	if length := len([]rune(lines[0])); length > 160 {
		t.Errorf("a line on the screen has %d characters", length)
	}
	if got := tail(path); !strings.Contains(got, "\n\tpanic: no JSON\n\tWARNING slow") {
		t.Errorf("tail() = %q", got)
	}
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
