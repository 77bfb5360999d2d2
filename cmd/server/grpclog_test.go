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
	const failed = `"grpc: failed"`
	for level, tellsLost := range map[string]bool{"DEBUG": true, "INFO": false} {
		p := s.start(t, "ROLES=api", "LOG_LEVEL="+level)
		lost := 0
		for lost < 3 || tellsLost && lost < 100 && !strings.Contains(p.logged(), failed) { // one that is lost between two writes has no line
			p.loseWatch(t)
			lost++
			eventually(t, time.Minute, "the watch has ended", func() bool {
				return strings.Count(p.logged(), `/WatchCatalogEntries"`) == lost
			})
		}
		if _, err := p.stop(t); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(p.logged()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: a line that is no JSON: %s", level, line)
			}
		}
		lines := strings.Count(p.logged(), failed)
		if lines > lost || (lines > 0) != tellsLost {
			t.Errorf("%s: %d lines of gRPC for %d lost watches, want at most one for each, and those for DEBUG only", level, lines, lost)
		}
	}
}

// loseWatch resets the connection of a watch while the server writes to it.
func (p *process) loseWatch(t *testing.T) {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // Close resets it
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /v1/catalogEntries:watch HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}
