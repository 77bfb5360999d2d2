package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/port"
)

// onePage gives lists room for one page at a time. It is the room that a list
// needs before its page is known.
const onePage = 2 * aip.MaxPageBytes

// A list waits while there is no room for its page, and is refused when there is
// none in time; other calls go on, and it has room once the others have ended.
func TestListsWaitForRoom(t *testing.T) {
	t.Parallel()
	overAll(t, port.Config{CallTimeout: time.Minute, PagesBudget: onePage, PageWait: 500 * time.Millisecond, PageRead: time.Minute}, func(t *testing.T, r *running, c client) {
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
	cfg := port.Config{CallTimeout: time.Minute, PagesBudget: onePage, PageWait: time.Minute, PageRead: 3 * time.Second}
	r := start(t, cfg, func(d *deps) { d.Listener = smallBuffers{d.Listener} })
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
