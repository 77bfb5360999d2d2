package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

const (
	patience = 3 * time.Minute   // for what takes seconds, unless a frozen relay has the locks of a transaction: Firestore ends it after 60 s
	isRelay  = "FIRESTORE_RELAY" // in the environment: this test binary is a relay, of this project
)

// emulator is the address of Google's emulator; skipped says why there is none.
var emulator, skipped string

func TestMain(m *testing.M) {
	if project := os.Getenv(isRelay); project != "" {
		if err := run(context.Background(), project, "letter.events", 0, quick); err != nil {
			panic(err)
		}
		return
	}
	stop, err := startEmulator()
	if err != nil {
		skipped = err.Error()
	}
	code := m.Run()
	stop()
	os.Exit(code)
}

// startEmulator starts Google's emulator. It keeps its data in memory: a project for each test.
func startEmulator() (stop func(), err error) {
	stop = func() {}
	for _, program := range []string{"gcloud", "java"} {
		if _, err := exec.LookPath(program); err != nil {
			return stop, fmt.Errorf("%s is not installed: Google's emulator of Firestore needs it", program)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return stop, err
	}
	emulator = listener.Addr().String()
	_ = listener.Close()
	cmd := exec.Command("gcloud", "emulators", "firestore", "start", "--host-port="+emulator, "--quiet")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // gcloud starts Java
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return stop, err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	stop = func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); <-ended }
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if conn, err := net.Dial("tcp", emulator); err == nil {
			return stop, conn.Close()
		}
		select {
		case <-ended:
			return stop, fmt.Errorf("the emulator of Firestore does not start: %s", &output)
		default:
		}
	}
	return stop, errors.New("the emulator of Firestore does not start in time")
}

// reads counts documents that a client was charged for: the documents of a response, and one for a query that finds none.
// https://firebase.google.com/docs/firestore/pricing
type reads struct{ n atomic.Int64 }

func (r *reads) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	return &countedStream{ClientStream: stream, reads: r}, err
}

type countedStream struct {
	grpc.ClientStream

	reads *reads
	found int64
}

func (s *countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch response := m.(type) {
	case *firestorepb.RunQueryResponse:
		if err != nil && s.found == 0 {
			s.reads.n.Add(1)
		}
		if err == nil && response.Document != nil {
			s.found++
			s.reads.n.Add(1)
		}
	case *firestorepb.BatchGetDocumentsResponse:
		if err == nil && response.Result != nil {
			s.reads.n.Add(1)
		}
	case *firestorepb.ListenResponse:
		if err == nil && response.GetDocumentChange() != nil {
			s.reads.n.Add(1)
		}
	}
	return err
}

// newClient returns a client of the emulator at an address, which may be a proxy.
func newClient(t *testing.T, project, addr string) (*firestore.Client, *reads) {
	t.Helper()
	if skipped != "" {
		t.Skip(skipped)
	}
	counted := new(reads)
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(counted.intercept),
		grpc.WithPerRPCCredentials(owner{}), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	must(t, err)
	client, err := firestore.NewClient(t.Context(), project, option.WithGRPCConn(conn))
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client, counted
}

// owner is what the emulator takes for the owner of a project.
type owner struct{}

func (owner) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer owner"}, nil
}
func (owner) RequireTransportSecurity() bool { return false }

// topic records what it is given, in order, and refuses what refuses matches.
type topic struct {
	refuses func(envelope.Message) bool // may be nil

	mu   sync.Mutex
	sent []envelope.Message
}

func (b *topic) Publish(m envelope.Message) outbox.Receipt {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuses != nil && b.refuses(m) {
		return &outbox.RefusedError{Err: errors.New("bad letter")}
	}
	b.sent = append(b.sent, m)
	return received{}
}

type received struct{}

func (received) Wait(context.Context) error { return nil }

// letters returns what was sent, as name and version.
func (b *topic) letters() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	for _, m := range b.sent {
		names = append(names, fmt.Sprint(m.AggregateID, m.Version))
	}
	return strings.Join(names, " ")
}

// proxy passes connections to the emulator, until cut ends them.
type proxy struct {
	addr string

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{addr: listener.Addr().String()}
	t.Cleanup(func() { listener.Close(); p.cut() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", emulator)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			go func() { _, _ = in.(*net.TCPConn).WriteTo(out); out.Close() }()
			go func() { _, _ = out.(*net.TCPConn).WriteTo(in); in.Close() }()
		}
	}()
	return p
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		conn.Close()
	}
	p.conns = nil
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
