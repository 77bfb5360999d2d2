package service

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// The tests of this file have their figures in lab/memory.md. In each of them two
// well-behaved clients, one of gRPC and one of REST, call all the while. The attacks within a
// test are parallel. The tests are not, because each measures how long these clients wait.

const (
	get     = "/catalog.v1.CatalogService/GetCatalogEntry"
	list    = "/video.v1.VideoService/ListVideos"
	create  = "/video.v1.VideoService/CreateVideo"
	watch   = "/catalog.v1.CatalogService/WatchCatalogEntries"
	reflect = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
)

// Clients that send a header slowly lose their connection. Others are served
// all the while.
func TestAbuseSlowHeaders(t *testing.T) {
	v := attack(t)
	var conns sync.WaitGroup
	for n := range many(300) {
		conn := v.dial(t)
		conns.Go(func() {
			began := time.Now()
			text := "GET /v1/videos HTTP/1.1\r\nHost: x\r\nX-Slow: "
			if n%3 == 0 {
				text = http2.ClientPreface[:20]
			}
			_, _ = io.WriteString(conn, text)
			for n%3 != 2 && time.Since(began) < patience {
				if _, err := conn.Write([]byte("x")); err != nil {
					return // cut off
				}
				time.Sleep(200 * time.Millisecond)
			}
			awaitClose(conn)
		})
	}
	// HTTP/2: a header that is begun and never ended.
	for range many(100) {
		c := v.rawHTTP2(t)
		must(t, c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: grpcHeader("/x/y")}))
	}
	conns.Wait()
	v.survived(t, 64)
}

// A header that is too large is refused, however it comes, and one that never
// ends costs its client the connection soon.
func TestAbuseHeaderFloods(t *testing.T) {
	v := attack(t)
	var attackers sync.WaitGroup
	for range 4 {
		attackers.Go(func() { // HTTP/1.1: one large header after the other
			for range 25 {
				conn := v.dial(t)
				go func() {
					_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n"+strings.Repeat("X-Flood: "+strings.Repeat("x", 1000)+"\r\n", 1000)+"\r\n")
				}()
				response, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err == nil && response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
					t.Errorf("status %s, want 431", response.Status)
				}
				_ = conn.Close()
			}
		})
		attackers.Go(func() { // HTTP/2: the same text by a reference of a byte each time
			c := v.rawHTTP2(t)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			// A literal that goes into the table, and then 10,000 times that entry: 40 MB.
			block := append([]byte{0x40, 0x01, 'a', 0x7f, 0x81, 0x1e}, strings.Repeat("x", 127+1+0x1e<<7)...)
			block = append(block, strings.Repeat("\xbe", 10_000)...)
			for range 20 {
				if _, err := c.open(append(grpcHeader("/x/y"), block...)); err != nil {
					return // cut off
				}
			}
		})
		attackers.Go(func() { // HTTP/2: CONTINUATION without an end
			c := v.rawHTTP2(t)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: grpcHeader("/x/y")}); err != nil {
				t.Error(err)
			}
			flood := headerBlock("x-flood", strings.Repeat("x", 8000))
			for sent := 0; ; sent += len(flood) {
				if err := c.WriteContinuation(1, false, flood); err != nil {
					return // cut off
				}
				if sent > 64<<20 {
					t.Error("64 MiB of a header were taken")
					return
				}
			}
		})
	}
	attackers.Wait()
	v.survived(t, 64)
}

// Streams that are opened and reset at once (CVE-2023-44487) do not keep more
// handlers busy than a connection may have.
func TestAbuseRapidReset(t *testing.T) {
	v := attack(t)
	var attackers sync.WaitGroup
	var resets atomic.Int64
	began := time.Now()
	for range 4 {
		attackers.Go(func() {
			for time.Since(began) < time.Second {
				c := v.rawHTTP2(t)
				go func() { _, _ = io.Copy(io.Discard, c) }()
				_ = c.SetWriteDeadline(began.Add(time.Second))
				for time.Since(began) < time.Second {
					err := c.call(watch, "")
					if err == nil {
						err = c.WriteRSTStream(c.nextID-2, http2.ErrCodeCancel)
					}
					if err != nil {
						break // cut off: again
					}
					resets.Add(1)
				}
				_ = c.Close()
			}
		})
	}
	attackers.Wait()
	t.Logf("%d streams were reset", resets.Load())
	v.survived(t, 128)
}

// A frame whose length is above the limit ends its connection at once, and the
// server allocates no memory for it.
func TestAbuseHugeFrames(t *testing.T) {
	v := attack(t)
	var attackers sync.WaitGroup
	for _, size := range []uint32{16<<10 + 1, 1 << 20, 1<<24 - 1} {
		for kind := range uint8(10) {
			c := v.rawHTTP2(t)
			head := binary.BigEndian.AppendUint32(nil, size<<8|uint32(kind))
			head = append(head, 4, 0, 0, 0, 1)
			go func() { _, _ = c.Conn.Write(append(head, make([]byte, 32<<10)...)) }()
			attackers.Go(func() { awaitClose(c) })
		}
	}
	attackers.Wait()
	v.survived(t, 32)
}

// Calls that go on for ever, by sending, by not sending, by not reading, or by
// being a stream, end in time, and hold little memory until then.
func TestAbuseEndlessStreams(t *testing.T) {
	t.Run("sending without end", func(t *testing.T) {
		v := attack(t)
		var attackers sync.WaitGroup
		for _, method := range []string{get, watch, reflect} {
			attackers.Go(func() {
				// Responses cannot be sent, so requests wait in the server.
				c := v.rawHTTP2(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				id, err := c.open(grpcHeader(method))
				if err != nil {
					t.Error(err)
					return
				}
				// Messages that list the services; other methods cannot use them. gRPC joins smaller ones.
				message := append([]byte{0, 0, 0, 0, 62, 0x3a, 60}, bytes.Repeat([]byte("x"), 60)...)
				sent := c.pump(id, bytes.Repeat(message, 200), 256<<20)
				if sent > 2<<20 {
					t.Errorf("%s: the server took %d MiB of one request", method, sent>>20)
				}
			})
		}
		attackers.Wait()
		v.survived(t, 128)
	})
	t.Run("not sending", func(t *testing.T) {
		v := attack(t)
		var conns sync.WaitGroup
		for range 3 { // fewer than transport.Config.MaxCalls in all: beyond it others would be refused
			c := v.rawHTTP2(t)
			for n := range 100 {
				block := grpcHeader([]string{get, create, reflect}[n%3])
				_, err := c.open(block)
				must(t, err)
			}
			conns.Go(func() { c.awaitEnd(100) })
		}
		for range 100 {
			conn := v.dial(t)
			_, err := io.WriteString(conn, lines("POST /v1/videos HTTP/1.1", "Host: x", "Content-Length: 1000", "", `{"title":`))
			must(t, err)
			conns.Go(func() { awaitClose(conn) })
		}
		conns.Wait()
		v.survived(t, 128)
	})
	t.Run("not reading", func(t *testing.T) {
		v := attack(t)
		var conns sync.WaitGroup
		for range 3 {
			// No window: the answers have nowhere to go.
			c := v.rawHTTP2(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			for n := range 240 {
				must(t, c.call([]string{list, watch}[n%2], ""))
			}
			conns.Go(func() { c.awaitEnd(240) })
		}
		conns.Wait()
		v.survived(t, 128)
	})
	t.Run("watching", func(t *testing.T) {
		v := attack(t)
		var conns sync.WaitGroup
		for range 4 { // four times as many as there is room for; the ones that fit end after a while
			c := v.rawHTTP2(t)
			for range 249 {
				must(t, c.call(watch, ""))
			}
			conns.Go(func() { c.awaitEnd(249) })
		}
		conns.Wait()
		v.survived(t, 128)
	})
}

// pump sends a block again and again, as fast as the windows allow, until the
// server refuses it, or most bytes are sent. It returns how many were sent.
func (c *rawHTTP2) pump(id uint32, block []byte, most int) (sent int) {
	size := len(block)
	var mu sync.Mutex
	more := sync.NewCond(&mu)
	stream, connection, over := 65535, 65535, false
	go func() {
		for {
			frame, err := c.ReadFrame()
			mu.Lock()
			switch frame := frame.(type) {
			case *http2.WindowUpdateFrame:
				if frame.StreamID == 0 {
					connection += int(frame.Increment)
				} else {
					stream += int(frame.Increment)
				}
			case *http2.SettingsFrame:
				if window, ok := frame.Value(http2.SettingInitialWindowSize); ok {
					stream += int(window) - 65535
				}
			case *http2.RSTStreamFrame, *http2.GoAwayFrame:
				over = true
			}
			over = over || err != nil
			more.Broadcast()
			done := over
			mu.Unlock()
			if done {
				return
			}
		}
	}()
	mu.Lock()
	defer mu.Unlock()
	for sent < most {
		for !over && min(stream, connection) < size {
			more.Wait()
		}
		if over {
			break
		}
		stream -= size
		connection -= size
		mu.Unlock()
		err := c.WriteData(id, false, block)
		mu.Lock()
		if err != nil {
			break
		}
		sent += size
	}
	return sent
}

// A request whose end can be read in two ways is refused, or read in only one.
// A request hidden in a body is never executed.
func TestAbuseSmuggling(t *testing.T) {
	v := attack(t)
	hidden := lines("POST /v1/videos HTTP/1.1", "Host: x", "Content-Length: 20", "", `{"title":"smuggled"}`)
	chunked := "0\r\n\r\n"
	var checks sync.WaitGroup
	for name, tt := range map[string]struct {
		request string
		closed  bool // the connection must not be used again
	}{
		"length and chunks":          {lines("POST /health/live HTTP/1.1", "Host: x", "Content-Length: 6", "Transfer-Encoding: chunked", "", chunked) + hidden, true},
		"chunks and length":          {lines("POST /health/live HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", fmt.Sprintf("Content-Length: %d", len(chunked+hidden)), "", chunked) + hidden, true},
		"two lengths":                {lines("POST /health/live HTTP/1.1", "Host: x", "Content-Length: 0", fmt.Sprintf("Content-Length: %d", len(hidden)), "", hidden), true},
		"two lengths in one":         {lines("POST /health/live HTTP/1.1", "Host: x", fmt.Sprintf("Content-Length: 0, %d", len(hidden)), "", hidden), true},
		"length with a sign":         {lines("POST /health/live HTTP/1.1", "Host: x", "Content-Length: +0", "", hidden), true},
		"length in hexadecimal":      {lines("POST /health/live HTTP/1.1", "Host: x", "Content-Length: 0x0", "", hidden), true},
		"space before the colon":     {lines("POST /health/live HTTP/1.1", "Host: x", fmt.Sprintf("Content-Length : %d", len(hidden)), "", hidden), true},
		"folded header":              {lines("POST /health/live HTTP/1.1", "Host: x", "Transfer-Encoding:", " chunked", "", chunked) + hidden, true},
		"other transfer encoding":    {lines("POST /health/live HTTP/1.1", "Host: x", "Transfer-Encoding: xchunked", "", chunked) + hidden, true},
		"two transfer encodings":     {lines("POST /health/live HTTP/1.1", "Host: x", "Transfer-Encoding: identity, chunked", "", chunked) + hidden, true},
		"transfer encoding twice":    {lines("POST /health/live HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "Transfer-Encoding: identity", "", chunked) + hidden, true},
		"chunks in HTTP/1.0":         {lines("POST /health/live HTTP/1.0", "Host: x", "Connection: keep-alive", "Transfer-Encoding: chunked", "", chunked) + hidden, true},
		"size of a chunk too large":  {lines("POST /v1/videos HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "", "10000000000000000\r\n") + hidden, true},
		"negative size of a chunk":   {lines("POST /v1/videos HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "", "-1\r\n") + hidden, true},
		"chunk that lacks its end":   {lines("POST /v1/videos HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "", "1\r\nxx\r\n0\r\n\r\n") + hidden, true},
		"bare line feed in a chunk":  {lines("POST /v1/videos HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "", "1;x\n\rx\r\n0\r\n\r\n") + hidden, true},
		"bare carriage return":       {"POST /health/live HTTP/1.1\r\nHost: x\rContent-Length: 0\r\n\r\n" + hidden, true},
		"NUL in a header":            {"POST /health/live HTTP/1.1\r\nHost: x\r\nX: \x00\r\n\r\n" + hidden, true},
		"two hosts":                  {lines("POST /health/live HTTP/1.1", "Host: x", "Host: y", "", "") + hidden, true},
		"no host":                    {lines("POST /health/live HTTP/1.1", "", "") + hidden, true},
		"upgrade to HTTP/2":          {lines("GET /health/live HTTP/1.1", "Host: x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", fmt.Sprintf("Content-Length: %d", len(hidden)), "", hidden), false},
		"request in a body":          {lines("POST /health/live HTTP/1.1", "Host: x", fmt.Sprintf("Content-Length: %d", len(hidden)), "", hidden), false},
		"request in a body, chunked": {lines("POST /health/live HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "", fmt.Sprintf("%x\r\n", len(hidden)), "") + hidden + "\r\n0\r\n\r\n", true},
	} {
		conn := v.dial(t)
		_, err := io.WriteString(conn, tt.request)
		must(t, err)
		checks.Go(func() {
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			in := bufio.NewReader(conn)
			_, _ = in.Peek(1)                                         // an error comes again
			_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second)) // an idle connection may be open for longer
			answer, err := io.ReadAll(in)
			if got := strings.Count(string(answer), "HTTP/1.1 "); got != 1 || strings.Contains(string(answer), "smuggled") {
				t.Errorf("%s: %d responses, want 1:\n%s", name, got, answer)
			}
			if open := errors.Is(err, os.ErrDeadlineExceeded); open == tt.closed {
				t.Errorf("%s: the connection is open: %v, want %v, after\n%s", name, open, !tt.closed, answer)
			}
		})
	}
	checks.Wait()
	v.survived(t, 32)
}

// Idle connections cost little memory. The server closes the ones that never sent anything.
func TestAbuseIdleConnections(t *testing.T) {
	v := attack(t)
	n := many(1000)
	conns := make([]net.Conn, 0, n)
	for i := range n {
		conn := v.dial(t)
		switch i % 3 {
		case 1: // HTTP/1.1 that was used once
			_, err := io.WriteString(conn, "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
			must(t, err)
		case 2: // HTTP/2 that is never used
			_, err := io.WriteString(conn, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			must(t, err)
		}
		conns = append(conns, conn)
	}
	time.Sleep(500 * time.Millisecond)
	t.Logf("%d connections: %d KiB each at most", n, (v.peak(t)-v.before)<<10/n)
	for i, conn := range conns {
		if i%3 == 0 {
			awaitClose(conn)
		}
	}
	v.survived(t, n*64>>10+16)
}
