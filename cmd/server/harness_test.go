package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/pg/pgtest"
)

// limits is an environment variable that makes this test binary run the program. Its value has
// fields of the Config, as JSON, for tests that cannot wait for a timeout.
const limits = "LIMITS_UNDER_TEST"

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(limits); ok {
		p := program()
		if err := json.Unmarshal([]byte(text), &p.Limits); err != nil {
			panic(err)
		}
		p.Main()
	}
	pgtest.Main(m)
}

const project = "test-project"

// stack is what a server needs: a database with the schema, and Pub/Sub.
type stack struct {
	url        string
	migrateURL string        // the same database, without a pooler in between
	pool       *pgxpool.Pool // for the test itself
	pubsub     *localbroker.Server
}

func newStack(t testing.TB) *stack {
	t.Helper()
	pool := pgtest.Pool(t, 4)
	target := pool.Config().ConnString()
	broker, _ := localtopics.Start(t, project, localbroker.Resources{})
	return &stack{url: target, migrateURL: pgtest.Direct(t, target), pool: pool, pubsub: broker}
}

func (s *stack) environ(extra ...string) []string {
	return append([]string{
		limits + "={}", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PORT=0", "AUTH=off", "DATABASE_URL=" + s.url,
		"DATABASE_MAX_CONNS=" + os.Getenv("DATABASE_MAX_CONNS"),
		"PUBSUB_PROJECT=" + project, "PUBSUB_EMULATOR_HOST=" + s.pubsub.Addr(),
	}, extra...)
}

// process is a running server.
type process struct {
	cmd     *exec.Cmd
	listens string // the host of its port; empty or :: is every host
	addr    string
	conn    *grpc.ClientConn

	mu  sync.Mutex
	log []string // guarded by mu
	eof chan struct{}
}

// start starts a server and waits until it is ready.
func (s *stack) start(t testing.TB, extra ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), eof: make(chan struct{})}
	p.cmd.Env = s.environ(extra...)
	stderr, err := p.cmd.StderrPipe()
	must(t, err)
	must(t, p.cmd.Start())
	started := make(chan string, 1)
	go p.read(stderr, started)
	t.Cleanup(func() {
		if p.conn != nil {
			_ = p.conn.Close() // the server may have closed it
		}
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill() // it may have ended by itself
			_ = p.wait()
		}
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("log of the server:\n%s", strings.Join(p.log, "\n"))
		}
	})
	select {
	case addr := <-started:
		var port string
		p.listens, port, _ = net.SplitHostPort(addr)
		p.addr = "127.0.0.1:" + port
	case <-p.eof:
		t.Fatalf("the server ended: %v", p.wait())
	case <-time.After(30 * time.Second):
		t.Fatal("the server did not start")
	}
	if p.conn, err = grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the server is ready", func() bool {
		response, err := http.Get("http://" + p.addr + "/health/ready")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return p
}

// read keeps the log, and sends the address of the server to started.
func (p *process) read(stderr io.Reader, started chan<- string) {
	defer close(p.eof)
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		p.mu.Lock()
		p.log = append(p.log, lines.Text())
		p.mu.Unlock()
		var line struct{ Message, Addr string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "server: started" {
			started <- line.Addr
		}
	}
}

// wait waits for the end of the process and returns its error.
func (p *process) wait() error {
	<-p.eof
	return p.cmd.Wait()
}

var eventually, must = pgtest.Eventually, pgtest.Must
