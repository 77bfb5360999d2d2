package main

import (
	"bytes"
	"encoding/json"
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

	wait func() error // for its end; returns its error
	mu   sync.Mutex
	log  bytes.Buffer // guarded by mu
}

// start starts a server and waits until it is ready.
func (s *stack) start(t testing.TB, extra ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env, p.cmd.Stderr, p.wait = s.environ(extra...), p, sync.OnceValue(p.cmd.Wait)
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.conn != nil {
			_ = p.conn.Close() // the server may have closed it
		}
		_ = p.cmd.Process.Kill() // it may have ended by itself
		_ = p.wait()
		if t.Failed() {
			t.Logf("log of the server:\n%s", strings.Join(p.lines(), "\n"))
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- p.wait() }()
	eventually(t, 30*time.Second, "the server has started", func() bool { return p.addrOf("server: started") != "" || len(ended) > 0 })
	host, port, err := net.SplitHostPort(p.addrOf("server: started")) // none if it has ended
	must(t, err)
	p.listens, p.addr = host, "127.0.0.1:"+port
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	p.conn = conn
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

// Write keeps the log.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(text)
}

// lines returns the log.
func (p *process) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Split(p.log.String(), "\n")
}

// addrOf returns the address in the line of the log with a message, or "".
func (p *process) addrOf(message string) string {
	for _, text := range p.lines() {
		var line struct{ Message, Addr string }
		if json.Unmarshal([]byte(text), &line) == nil && line.Message == message {
			return line.Addr
		}
	}
	return ""
}

var eventually, must = pgtest.Eventually, pgtest.Must
