package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/port"
)

// long makes the tests of abuse use ten times as many connections. It needs as
// many open files, twice.
var long = flag.Bool("long", false, "ten times as many connections in the tests of abuse")

// isVictim in the environment makes the test binary a server that is attacked: in a
// process of its own its memory can be told from that of the attackers.
const isVictim = "VIDEOCATALOG_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(isVictim) == "" {
		os.Exit(m.Run())
	}
	if err := serveVictim(); err != nil {
		panic(err)
	}
}

// victimConfig has times so short that a test can wait for them, and so long
// that a busy machine keeps them; else the settings of production.
func victimConfig() port.Config {
	cfg := port.Config{CallTimeout: patience/2 - time.Second, StreamLifetime: 2 * time.Second, ReadHeaderTimeout: 3 * time.Second}
	cfg.PageWait = cfg.CallTimeout // half of which a busy machine may need for the lists of all attackers
	return cfg
}

// patience is how long an attacked server may take to answer others, or to end
// what it is to end, on a machine that does much else. What it takes is logged.
const patience = 10 * time.Second

// slow is a method whose requests are a stream, and which takes all the time it
// has before it reads any.
const slow = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

func admitSlowly(ctx context.Context, method string) (string, error) {
	if method == slow {
		<-ctx.Done()
	}
	return "", ctx.Err()
}

// serveVictim serves until its standard input ends, and returns each line of it
// with the most memory it has held, in bytes.
func serveVictim() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	store := newFakeStore()
	deps := deps{videos: store, entries: store, catalogConfig: CatalogConfig{MaxWait: 900 * time.Millisecond}}
	deps.Listener, deps.Log, deps.Admit = listener, slog.New(slog.DiscardHandler), admitSlowly
	server, _, err := newServer(victimConfig(), deps, store)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	var peak atomic.Uint64
	go func() {
		for ctx.Err() == nil {
			peak.Store(max(peak.Load(), held()))
			time.Sleep(10 * time.Millisecond)
		}
	}()
	go func() {
		defer stop()
		fmt.Println(listener.Addr())
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Println(peak.Load())
		}
	}()
	return server.Run(ctx)
}

// held is the memory that this process has from the system.
func held() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// victim is a server in a process of its own.
type victim struct {
	addr   string
	before uint64 // memory
	in     io.WriteCloser
	out    *bufio.Scanner

	// What another client has seen meanwhile.
	stop   context.CancelFunc
	others sync.WaitGroup
	calls  atomic.Int64
	mu     sync.Mutex
	worst  time.Duration // guarded by mu
	failed error         // guarded by mu
}

// attack starts a server, and a client that uses it all the while.
func attack(t *testing.T) *victim {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), isVictim+"=1")
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	v := &victim{in: in, out: bufio.NewScanner(out)}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server ended with %v, want it to survive", err)
		}
	})
	if !v.out.Scan() {
		t.Fatal("the server did not start")
	}
	v.addr = v.out.Text()
	ctx, stop := context.WithCancel(t.Context())
	v.stop = stop
	t.Cleanup(stop)
	conn, err := grpc.NewClient("passthrough:"+v.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	videos := videov1.NewVideoServiceClient(conn)
	v.use(ctx, t, func() error {
		_, err := videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()})
		return err
	})
	rest := httpClient(t, false)
	v.use(ctx, t, func() error {
		rest.CloseIdleConnections() // each time as somebody new
		response, err := rest.Get("http://" + v.addr + "/v1/videos?pageSize=1")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode == http.StatusGatewayTimeout {
			return context.DeadlineExceeded
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", response.Status)
		}
		_, err = io.Copy(io.Discard, response.Body)
		return err
	})
	for v.calls.Load() < 20 {
		time.Sleep(time.Millisecond)
	}
	v.before = v.peak(t)
	return v
}

// use calls again and again until ctx ends.
func (v *victim) use(ctx context.Context, t *testing.T, call func() error) {
	t.Helper()
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

func (v *victim) peak(t *testing.T) (bytes uint64) {
	t.Helper()
	if _, err := io.WriteString(v.in, "\n"); err != nil || !v.out.Scan() {
		t.Fatalf("the server is gone: %v", err)
	}
	if _, err := fmt.Sscan(v.out.Text(), &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes
}

// survived checks that no call of the others was refused or broken, that they
// are still served, and that the server held at most that many MiB more than before.
func (v *victim) survived(t *testing.T, most uint64) {
	t.Helper()
	calls := v.calls.Load()
	for v.calls.Load() < calls+20 {
		time.Sleep(time.Millisecond)
	}
	v.stop()
	v.others.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	grown := (v.peak(t) - v.before) >> 20
	t.Logf("others: %d calls, the slowest %v; memory: %d MiB before, %d MiB more at most", v.calls.Load(), v.worst.Round(time.Millisecond), v.before>>20, grown)
	if v.failed != nil {
		t.Errorf("others: %v, want no error", v.failed)
	}
	if grown > most {
		t.Errorf("memory grew by %d MiB, want at most %d", grown, most)
	}
}

// dial opens a connection that the test closes at its end.
func (v *victim) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", v.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// rawHTTP2 is a client of HTTP/2 without manners.
type rawHTTP2 struct {
	net.Conn
	*http2.Framer
	nextID uint32
}

func (v *victim) rawHTTP2(t *testing.T, settings ...http2.Setting) *rawHTTP2 {
	t.Helper()
	conn := v.dial(t)
	c := &rawHTTP2{Conn: conn, Framer: http2.NewFramer(conn, conn), nextID: 1}
	c.AllowIllegalWrites = true
	c.SetMaxReadFrameSize(1 << 20)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSettingsAck(); err != nil {
		t.Fatal(err)
	}
	return c
}

// headerBlock encodes a header without a table, so that every connection may use it.
func headerBlock(pairs ...string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	for i := 0; i < len(pairs); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return block.Bytes()
}

// grpcHeader is that of a call by gRPC.
func grpcHeader(method string, more ...string) []byte {
	return headerBlock(append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "x", "content-type", "application/grpc", "te", "trailers"}, more...)...)
}

// open begins a stream and leaves its request open.
func (c *rawHTTP2) open(block []byte) (id uint32, err error) {
	id = c.nextID
	c.nextID += 2
	return id, c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
}

// awaitClose reads until the server ends a connection. Where it never does, the
// test ends by its timeout.
func awaitClose(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// many is how many connections an attack has.
func many(n int) int {
	if *long {
		return 10 * n
	}
	return n
}

// lines joins the lines of a request of HTTP/1.1.
func lines(text ...string) string { return strings.Join(text, "\r\n") }
