package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"example.com/servicekit/localbroker"
	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/internal/tuned"
)

var must, eventually = pgtest.Must, pgtest.Eventually

// root is the directory of the repository.
const root = "../.."

// long makes the attacks use ten times as many connections. The test and the service each need as many open files.
var long = flag.Bool("long", false, "ten times as many connections in the attacks")

// patience is how long an attacked server may take to respond to others, or to end a
// call or a connection, on a busy machine. The time that it took is logged.
const patience = 10 * time.Second

// programs has a folder for what the tests build.
var programs string

// TestMain lets the tests of alerts run in parallel on a small machine, too: they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "service")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	programs = dir
	pgtest.Main(m)
}

// server builds the service once, with variables for the Config of its packages, and returns its path.
func server(t testing.TB) string {
	t.Helper()
	must(t, builtServer())
	return filepath.Join(programs, "server")
}

var builtServer = sync.OnceValue(func() error { return buildServer(filepath.Join(programs, "server"), programs, nil) })

// buildServer builds the service with the files of an overlay, which it writes to dir.
func buildServer(program, dir string, overlay map[string]string) error {
	top, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	flag, err := tuned.Overlay(top, dir, overlay)
	if err != nil {
		return err
	}
	return build(program, "cmd/server", flag)
}

func build(program, command string, flags ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", program}, flags...), "./"+command)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", command, err, out)
	}
	return nil
}

func read(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return string(content)
}

const project = "test-project"

func newBroker(t testing.TB) *localbroker.Server {
	broker, _ := localtopics.Start(t, project, localbroker.Resources{})
	return broker
}

// process is a running service that ends with its test.
type process struct {
	*program
	addr    string
	videos  videov1.VideoServiceClient // of a stack
	catalog catalogv1.CatalogServiceClient
}

// environ returns the environment of a service with more variables.
func environ(extra ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PORT=0", "AUTH=off", "ALLOWED_HOSTS=*"}, extra...)
}

// startService starts the service, and waits until it listens.
func startService(t testing.TB, environ ...string) *process {
	t.Helper()
	p := &process{program: start(t, environ, server(t))}
	ended := make(chan error, 1)
	go func() { ended <- p.wait() }()
	eventually(t, 30*time.Second, "the service has started", func() bool { return p.addrOf("server: started") != "" || len(ended) > 0 })
	_, port, err := net.SplitHostPort(p.addrOf("server: started")) // none if it has ended
	must(t, err)
	p.addr = "127.0.0.1:" + port
	return p
}

// stop sends SIGTERM. A service that survived what was done to it ends without an error.
func (p *process) stop(t testing.TB) {
	t.Helper()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	must(t, p.wait())
}

// peak returns the most memory that the process has had, in MiB.
func (p *process) peak(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(t, err)
	_, line, _ := bytes.Cut(text, []byte("VmHWM:"))
	_, err = fmt.Sscanf(string(bytes.TrimSpace(line)), "%d kB", &n)
	must(t, err)
	return n >> 10
}

// dial opens a connection that the test closes at its end.
func (p *process) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// victim is a service that is attacked, with two clients that behave well.
type victim struct {
	*process
	before int // memory in MiB

	stop   context.CancelFunc
	others sync.WaitGroup
	calls  atomic.Int64
	mu     sync.Mutex
	worst  time.Duration // guarded by mu
	failed error         // guarded by mu
}

// attack starts a service, and clients of gRPC and REST that use it all the while. The service's time
// limits are so short that a test can wait for them, and so long that a busy machine keeps them.
func attack(t *testing.T) *victim {
	t.Helper()
	v := &victim{process: startService(t, environ("ROLES=api", "DATABASE_URL="+pgtest.URL(t),
		"LAB_TRANSPORT_CALL_TIMEOUT=4s", "LAB_TRANSPORT_STREAM_LIFETIME=2s", "LAB_TRANSPORT_READ_HEADER_TIMEOUT=3s")...)}
	ctx, stop := context.WithCancel(t.Context())
	v.stop = stop
	t.Cleanup(stop)
	conn, err := grpc.NewClient(v.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	videos := videov1.NewVideoServiceClient(conn)
	v.use(ctx, func() error {
		_, err := videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		return err
	})
	v.use(ctx, func() error {
		rest := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // each time as somebody new
		response, err := rest.Get("http://" + v.addr + "/v1/videos?pageSize=1")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK:
			_, err = io.Copy(io.Discard, response.Body)
			return err
		case http.StatusGatewayTimeout:
			return context.DeadlineExceeded
		}
		return fmt.Errorf("status %s", response.Status)
	})
	v.awaitCalls(20)
	v.before = v.peak(t)
	return v
}

// use calls again and again until ctx ends.
func (v *victim) use(ctx context.Context, call func() error) {
	v.others.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			err := call()
			// That a call takes too long may be the machine's doing.
			if late := errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded; !late {
				v.calls.Add(1)
				v.mu.Lock()
				v.worst = max(v.worst, time.Since(began))
				v.failed = cmp.Or(v.failed, err)
				v.mu.Unlock()
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

func (v *victim) awaitCalls(more int64) {
	for all := v.calls.Load() + more; v.calls.Load() < all; {
		time.Sleep(time.Millisecond)
	}
}

// survived checks that no call of the others was refused or broken, that they are
// still served, and that the server's memory grew by no more than most MiB.
func (v *victim) survived(t *testing.T, most int) {
	t.Helper()
	v.awaitCalls(20)
	v.stop()
	v.others.Wait()
	grown := v.peak(t) - v.before
	v.process.stop(t)
	t.Logf("others: %d calls, the slowest %v; memory: %d MiB before, %d MiB more at most", v.calls.Load(), v.worst.Round(time.Millisecond), v.before, grown)
	if v.failed != nil {
		t.Errorf("others: %v, want no error", v.failed)
	}
	if grown > most {
		t.Errorf("memory grew by %d MiB, want at most %d", grown, most)
	}
}

// rawHTTP2 is a client of HTTP/2 that may break its rules.
type rawHTTP2 struct {
	net.Conn
	*http2.Framer
	nextID uint32
}

func (p *process) rawHTTP2(t *testing.T, settings ...http2.Setting) *rawHTTP2 {
	t.Helper()
	conn := p.dial(t)
	c := &rawHTTP2{Conn: conn, Framer: http2.NewFramer(conn, conn), nextID: 1}
	c.AllowIllegalWrites = true
	c.SetMaxReadFrameSize(1 << 20)
	_, err := io.WriteString(conn, http2.ClientPreface)
	must(t, errors.Join(err, c.WriteSettings(settings...), c.WriteSettingsAck()))
	return c
}

// headerBlock encodes a header without a dynamic table, so that every connection may use it.
func headerBlock(pairs ...string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	for i := 0; i < len(pairs); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return block.Bytes()
}

// grpcHeader is the header of a call by gRPC.
func grpcHeader(method string) []byte {
	return headerBlock(":method", "POST", ":scheme", "http", ":path", method, ":authority", "x", "content-type", "application/grpc", "te", "trailers")
}

// open begins a stream and leaves its request open.
func (c *rawHTTP2) open(block []byte) (id uint32, err error) {
	id = c.nextID
	c.nextID += 2
	return id, c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
}

// call opens a stream, and ends its side of it with a message.
func (c *rawHTTP2) call(method, message string) error {
	id, err := c.open(grpcHeader(method))
	if err != nil {
		return err
	}
	return c.WriteData(id, true, append([]byte{0, 0, 0, 0, byte(len(message))}, message...))
}

// awaitEnd reads until that many streams have ended, or the connection has. A
// busy machine may take long for it. Where they never end, the test ends by its
// timeout.
func (c *rawHTTP2) awaitEnd(open int) {
	ended := make(map[uint32]bool)
	for len(ended) < open {
		frame, err := c.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			ended[frame.StreamID] = true
		case *http2.HeadersFrame:
			if frame.StreamEnded() {
				ended[frame.StreamID] = true
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				_ = c.WritePing(true, frame.Data)
			}
		}
	}
}

// awaitClose reads until the server ends a connection. Where it never does, the
// test ends by its timeout.
func awaitClose(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// many returns how many connections an attack has.
func many(n int) int {
	if *long {
		return 10 * n
	}
	return n
}

// lines joins the lines of a request of HTTP/1.1.
func lines(text ...string) string { return strings.Join(text, "\r\n") }
