package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// small makes the budget of a server so small that one page at a time has room.
func small(wait, read time.Duration) func(*Server) {
	return func(s *Server) {
		s.pages = &budget{bytes: semaphore.NewWeighted(pageShare), wait: wait, read: read}
	}
}

// A list waits while there is no room for its page, and is refused when there is
// none in time; other calls go on, and it has room once the others have ended.
func TestListsWaitForRoom(t *testing.T) {
	t.Parallel()
	overAll(t, Config{CallTimeout: time.Minute}, func(t *testing.T, r *running, c client) {
		small(500*time.Millisecond, time.Minute)(r.server)
		mustCreate(t, c, film())
		entered, release := hang(r)
		first := make(chan error, 1)
		go func() {
			_, err := c.videos.ListVideos(t.Context(), nil)
			first <- err
		}()
		<-entered
		_, err := c.videos.ListVideos(t.Context(), nil)
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "large pages") {
			t.Errorf("a list without room = %v, want Unavailable", err)
		}
		release()
		if err := <-first; err != nil {
			t.Errorf("the list with room = %v, want success", err)
		}
		for range 20 {
			if _, err := c.videos.ListVideos(t.Context(), nil); err != nil {
				t.Fatalf("a list after the others have ended = %v, want success", err)
			}
		}
	})
}

// smallBuffers lets the system keep little of what its connections write.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		err = conn.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return conn, err
}

// A client that does not read its page is cut off, and others have its room.
func TestListsThatNobodyReadsEnd(t *testing.T) {
	t.Parallel()
	r := start(t, Config{CallTimeout: time.Minute}, func(d *Deps) { d.Listener = smallBuffers{d.Listener} })
	small(time.Minute, 3*time.Second)(r.server)
	c := r.grpcClient(t)
	for range 20 { // 800 kB: more than the system keeps for such a connection
		mustCreate(t, c, &videov1.Video{Title: "x", Description: strings.Repeat("🎬", 10_000)})
	}
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	if _, err := io.WriteString(conn, "GET /v1/videos?pageSize=20 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = bufio.NewReader(conn).Peek(1) // the page is being written
	response, err := httpClient(t, false).Get(fmt.Sprintf("http://%s/v1/videos?pageSize=20", r.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("a list behind one that nobody reads: %s, want 200", response.Status)
	}
}

// A message that comes byte by byte is read whole, so that the transport keeps one
// buffer for it and not one for every byte; what is behind it is not waited for.
func TestMessagesAreReadWhole(t *testing.T) {
	t.Parallel()
	message := func(size int) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), bytes.Repeat([]byte{'x'}, size)...)
	}
	in, out := io.Pipe()
	defer in.Close()
	body := &wholeMessages{ReadCloser: io.NopCloser(iotest.OneByteReader(in))}
	buffer := make([]byte, 16<<10)
	for _, size := range []int{0, 1, 1000, 16<<10 - 5} {
		go func() { _, _ = out.Write(message(size)) }()
		if n, err := body.Read(buffer); n != size+5 || err != nil {
			t.Errorf("a message of %d bytes: %d bytes read at once, %v, want all", size, n-5, err)
		}
	}
	go func() {
		_, _ = out.Write(message(20_000))
		_ = out.Close()
	}()
	rest, err := io.ReadAll(body)
	if !bytes.Equal(rest, message(20_000)) || err != nil {
		t.Errorf("a larger message: %d bytes, %v, want 20005", len(rest), err)
	}
}

// Only so many large requests are received at a time; small ones do not wait.
func TestLargeBodiesWait(t *testing.T) {
	t.Parallel()
	large := semaphore.NewWeighted(1)
	ctx, cancel := context.WithCancel(t.Context())
	read := func(size int) (*boundedBody, int, error) {
		body := &boundedBody{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat("x", size))), ctx: ctx, large: large}
		text, err := io.ReadAll(body)
		return body, len(text), err
	}
	first, n, err := read(2 * smallBody)
	if n != 2*smallBody || err != nil {
		t.Errorf("a large body: %d bytes, %v, want all", n, err)
	}
	if _, n, err := read(smallBody - 1); n != smallBody-1 || err != nil {
		t.Errorf("a small body beside it: %d bytes, %v, want all", n, err)
	}
	time.AfterFunc(10*time.Millisecond, cancel)
	second, n, err := read(2 * smallBody)
	if n != smallBody || err == nil {
		t.Errorf("another large body: %d bytes, %v, want it to wait", n, err)
	}
	second.end()
	first.end()
	if !large.TryAcquire(1) {
		t.Error("the room of the first is not given back")
	}
}
