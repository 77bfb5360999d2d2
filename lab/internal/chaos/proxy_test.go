package chaos

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echoServer sends each line back. To "commit" it responds like PostgreSQL.
func echoServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					answer := append(lines.Bytes(), '\n')
					if lines.Text() == "commit" {
						answer = commitComplete
					}
					if _, err := conn.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func startProxy(t *testing.T) *proxy {
	t.Helper()
	addr := echoServer(t)
	p, err := newProxy(t.Context(), func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

func connect(t *testing.T, p *proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a line, and returns the response within a time limit.
func ask(conn net.Conn, line string, within time.Duration) (string, error) {
	if _, err := conn.Write([]byte(line + "\n")); err != nil {
		return "", err
	}
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	return string(answer[:n]), err
}

// A proxy passes all traffic, and produces each fault.
func TestProxy(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	conn := connect(t, p)
	if got, err := ask(conn, "hello", 10*time.Second); got != "hello\n" || err != nil {
		t.Fatalf("answer = %q, %v, want hello", got, err)
	}
	p.slow(50 * time.Millisecond)
	start := time.Now()
	if got, err := ask(conn, "slow", 10*time.Second); got != "slow\n" || err != nil || time.Since(start) < 100*time.Millisecond {
		t.Errorf("answer = %q, %v after %s, want slow after 100ms, 50 in each direction", got, err, time.Since(start))
	}
	p.slow(0)
	resume := p.stall()
	if got, err := ask(conn, "held", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("answer while it is stalled = %q, %v, want none", got, err)
	}
	resume()
	if _, err := conn.Write([]byte("on\n")); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	both := make([]byte, len("held\non\n"))
	if _, err := io.ReadFull(conn, both); string(both) != "held\non\n" || err != nil {
		t.Errorf("answers after it = %q, %v, want held, and on", both, err)
	}
	if n := p.open(); n != 1 {
		t.Errorf("%d connections are open, want 1", n)
	}
	p.cut()
	if got, err := ask(conn, "cut", 10*time.Second); err == nil {
		t.Errorf("answer after a cut = %q, want an error", got)
	}
	if got, err := ask(connect(t, p), "new", 10*time.Second); got != "new\n" || err != nil {
		t.Errorf("answer of a new connection = %q, %v, want new", got, err)
	}
}

// A silenced connection is silent for both sides, even if one of them closes it,
// until the server's side is closed. A new connection works.
func TestProxyForgetsConnections(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	before := connect(t, p)
	if got, err := ask(before, "hello", 10*time.Second); got != "hello\n" || err != nil {
		t.Fatalf("answer = %q, %v, want hello", got, err)
	}
	giveUp := p.silence()
	if got, err := ask(before, "lost", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("answer of what is forgotten = %q, %v, want none", got, err)
	}
	if got, err := ask(connect(t, p), "new", 10*time.Second); got != "new\n" || err != nil {
		t.Errorf("answer of a new connection = %q, %v, want new", got, err)
	}
	before.Close()
	time.Sleep(50 * time.Millisecond)
	if n := p.open(); n != 2 {
		t.Errorf("%d connections are open, want 2: the server does not know that one is gone", n)
	}
	giveUp()
	for deadline := time.Now().Add(10 * time.Second); p.open() > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open, want 1: the server has given up the other", p.open())
		}
	}
	left := connect(t, p)
	if _, err := ask(left, "hello", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	p.silence()()
	if got, err := ask(left, "lost", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("answer when the server has given up = %q, %v, want none, and no end", got, err)
	}
}

// The proxy counts the responses to COMMIT that it passed on.
func TestProxyCountsCommits(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	conn := connect(t, p)
	for _, line := range []string{"commit", "select", "commit"} {
		if _, err := ask(conn, line, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	p.interceptCommit(func() {})
	_, _ = ask(conn, "commit", 10*time.Second) // it gets no response
	if n := p.committed(); n != 2 {
		t.Errorf("committed() = %d, want 2", n)
	}
}

// One response to a COMMIT is lost, after the server has sent it.
func TestProxyLosesResponseToCommit(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	conn := connect(t, p)
	met := make(chan struct{})
	cancel := p.interceptCommit(func() { close(met) })
	if got, err := ask(conn, "select", 10*time.Second); got != "select\n" || err != nil {
		t.Errorf("answer = %q, %v, want select: it is no commit", got, err)
	}
	if got, err := ask(conn, "commit", 10*time.Second); got != "" || err == nil {
		t.Errorf("answer to the commit = %q, %v, want an end of the connection", got, err)
	}
	<-met
	turns := make(chan int, 3)
	p.interceptCommit(func() { turns <- 1 })
	second := p.interceptCommit(func() { t.Error("it was given up") })
	p.interceptCommit(func() { turns <- 3 })
	if waits := second(); !waits {
		t.Error("the second of three was given up in time, and that is said to be too late")
	}
	for _, want := range []int{1, 3} {
		if got, err := ask(connect(t, p), "commit", 10*time.Second); got != "" || err == nil {
			t.Errorf("answer to the commit of number %d = %q, %v, want an end of the connection", want, got, err)
		}
		if got := <-turns; got != want {
			t.Errorf("number %d had its turn, want %d", got, want)
		}
	}
	if waits := cancel(); waits {
		t.Error("it happened, and that is said to be given up in time")
	}
	if got, err := ask(connect(t, p), "commit", 10*time.Second); got != string(commitComplete) || err != nil {
		t.Errorf("answer to the next commit = %q, %v, want it", got, err)
	}
	if waits := p.interceptCommit(func() { t.Error("it was given up") })(); !waits {
		t.Error("it was given up in time, and that is said to be too late")
	}
	if got, err := ask(connect(t, p), "commit", 10*time.Second); got != string(commitComplete) || err != nil {
		t.Errorf("answer to the commit after giving up = %q, %v, want it", got, err)
	}
}
