package main

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A watch over REST whose client is lost is one line in the log, in its form,
// and only for whom asks for details.
func TestLostWatchIsLoggedOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.storeLarge(t, 300) // more than the system keeps for a connection
	for level, want := range map[string]int{"DEBUG": 1, "INFO": 0} {
		p := s.start(t, "ROLES=api", "LOG_LEVEL="+level)
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // Close resets it
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "GET /v1/catalogEntries:watch HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the server waits for its client by then, and if not, it fails a little later
		_ = conn.Close()
		eventually(t, 10*time.Second, "the watch has ended", func() bool {
			return strings.Contains(p.logged(), "WatchCatalogEntries")
		})
		if _, err := p.stop(t); err != nil {
			t.Error(err)
		}
		var lines int
		for line := range strings.Lines(p.logged()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: a line that is no JSON: %s", level, line)
			}
			if strings.Contains(line, `"grpc: failed"`) {
				lines++
			}
		}
		if lines != want {
			t.Errorf("%s: %d lines of gRPC, want %d", level, lines, want)
		}
	}
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}
