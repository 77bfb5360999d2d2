package pubsublocal

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// N13: gRPC and HTTP/1.1 share one port. When both servers are stopped, it is closed.
func TestSplitListenerServesBothProtocols(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	grpcListener, httpListener := splitListener(l)
	grpcServer := grpc.NewServer()
	pubsubpb.RegisterPublisherServer(grpcServer, pubsubpb.UnimplementedPublisherServer{})
	httpServer := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })}
	served := make(chan error, 2)
	go func() { served <- grpcServer.Serve(grpcListener) }()
	go func() { served <- httpServer.Serve(httpListener) }()

	for range 2 {
		if code, body := call(t, http.MethodGet, "http://"+l.Addr().String(), "", nil); code != http.StatusOK || body != "HTTP/1.1" {
			t.Errorf("GET = %d %q, want 200 over HTTP/1.1", code, body)
		}
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = pubsubpb.NewPublisherClient(conn).GetTopic(t.Context(), &pubsubpb.GetTopicRequest{})
		if got := status.Code(err); got != codes.Unimplemented {
			t.Errorf("GetTopic = %v, want UNIMPLEMENTED from the gRPC server", err)
		}
	}
	grpcServer.Stop()
	if err := httpServer.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	for range 2 {
		if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve() = %v", err)
		}
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("the port is open after both servers ended")
	}
}

// The first bytes of a connection decide which listener gets it, even if they come slowly. No
// byte is lost.
func TestSplitListenerSorts(t *testing.T) {
	const h2, h1 = "grpc", "http"
	tests := []struct {
		name, sent, want string
	}{
		{"HTTP/2", http2Preface + "rest", h2},
		{"PUT, which starts as the preface does", "PUT / HTTP/1.1\r\n", h1},
		{"POST", "POST / HTTP/1.1\r\n", h1},
		{"the preface of another version", "PRI * HTTP/3.0\r\n\r\n", h1},
		{"a preface with another end", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", h1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := bufconn.Listen(1024)
			grpcListener, httpListener := splitListener(l)
			defer grpcListener.Close()
			defer httpListener.Close()
			client, err := l.Dial()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for _, b := range []byte(tt.sent) {
					_, _ = client.Write([]byte{b})
				}
				_ = client.Close()
			}()
			type accepted struct {
				half string
				text string
			}
			got := make(chan accepted, 2)
			for half, listener := range map[string]net.Listener{h2: grpcListener, h1: httpListener} {
				go func() {
					if c, err := listener.Accept(); err == nil {
						all, _ := io.ReadAll(c)
						got <- accepted{half, string(all)}
					}
				}()
			}
			if got, want := <-got, (accepted{tt.want, tt.sent}); got != want {
				t.Errorf("accepted %+v, want %+v", got, want)
			}
		})
	}
}

// A connection that sends nothing does not delay others, and is closed after some time.
func TestSplitListenerSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1024)
		grpcListener, httpListener := splitListener(l)
		start := time.Now()
		silent, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		second, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := second.Write([]byte("GET / HTTP/1.1\r\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := httpListener.Accept(); err != nil || time.Since(start) != 0 {
			t.Errorf("the second connection: %v after %v, want it at once", err, time.Since(start))
		}
		if _, err := silent.Read(make([]byte, 1)); err == nil || time.Since(start) != prefaceTimeout {
			t.Errorf("the silent connection: %v after %v, want it closed after %v", err, time.Since(start), prefaceTimeout)
		}
		_ = grpcListener.Close()
		_ = httpListener.Close()
	})
}

// When the parent is closed, both listeners end, with their waiting Accepts and all goroutines.
// synctest checks the goroutines.
func TestSplitListenerParentClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1024)
		grpcListener, httpListener := splitListener(l)
		silent, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		unwanted, err := l.Dial() // it is not accepted
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unwanted.Write([]byte("GET / HTTP/1.1\r\n")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ended := make(chan error)
		go func() { _, err := grpcListener.Accept(); ended <- err }()
		_ = l.Close()
		if err := <-ended; err == nil {
			t.Error("Accept() = nil after the parent was closed")
		}
		if _, err := httpListener.Accept(); err == nil {
			t.Error("Accept() of the other half = nil after the parent was closed")
		}
		for _, c := range []net.Conn{silent, unwanted} {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a connection that nobody got is still open")
			}
		}
	})
}

// A temporary error, such as too many open files, does not end the listener.
func TestSplitListenerTemporaryError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1024)
		grpcListener, httpListener := splitListener(&flakyListener{Listener: l, failures: 3})
		c, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("GET")); err != nil {
			t.Fatal(err)
		}
		if _, err := httpListener.Accept(); err != nil {
			t.Errorf("Accept() = %v, want a connection", err)
		}
		_ = grpcListener.Close()
		_ = httpListener.Close()
	})
}

type flakyListener struct {
	net.Listener

	failures int
}

func (l *flakyListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, temporaryError{}
	}
	return l.Listener.Accept()
}

type temporaryError struct{}

func (temporaryError) Error() string   { return "too many open files" }
func (temporaryError) Temporary() bool { return true }

// A cut closes all connections. An outage also closes new ones until it ends.
func TestBreakableListener(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &breakableListener{Listener: tcp}
	server := &http.Server{Handler: http.NotFoundHandler()}
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	// alive reports whether a request over the connection gets a response.
	alive := func(c net.Conn) bool {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return false
		}
		b := make([]byte, 512)
		n, _ := c.Read(b)
		return strings.HasPrefix(string(b[:n]), "HTTP/1.1 404")
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	c := dial()
	if !alive(c) {
		t.Fatal("no answer at first")
	}
	l.cutConnections()
	if alive(c) {
		t.Error("an answer over a connection that was cut")
	}
	if c = dial(); !alive(c) {
		t.Error("no answer over a new connection after a cut")
	}
	l.setDown(true)
	if alive(c) || alive(dial()) {
		t.Error("an answer during an outage")
	}
	l.setDown(false)
	if !alive(dial()) {
		t.Error("no answer after an outage")
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve() = %v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := len(l.conns); got != 0 {
		t.Errorf("%d connections are kept after all were closed, want 0", got)
	}
}
