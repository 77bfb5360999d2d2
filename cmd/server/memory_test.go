package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/deep"
)

// mostMemory is what an instance of deploy/run has, in MiB.
const mostMemory = 512

var each = flag.Bool("each", false, "measure the memory under each kind of attack by itself too, for 12 s")

// Whatever is stored, and whatever clients do at a time, the process stays below
// the memory of its instance.
func TestMemoryIsBounded(t *testing.T) {
	deep.Test(t)
	s := newStack(t)
	s.storeLarge(t, 300)
	everything := func(t *testing.T, a *attackers) {
		t.Helper()
		a.calls /= 5 // kinds of calls
		for _, name := range slices.Sorted(maps.Keys(attacks)) {
			if name != "watches over gRPC that nobody reads" { // those over REST have all places, and hold more
				attacks[name](t, a)
			}
		}
	}
	t.Run("everything at once", func(t *testing.T) { s.attack(t, everything, 5*time.Second, "GOMEMLIMIT=400MiB") })
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			if !*each {
				t.Skip("part of everything at once; -each measures it by itself")
			}
			s.attack(t, attack, 12*time.Second, "GOMEMLIMIT=off")
		})
	}
}

// attack attacks a process for a time, and checks what memory it has had.
func (s *stack) attack(t *testing.T, attack func(t *testing.T, a *attackers), lasting time.Duration, limit string) {
	t.Helper()
	p := s.start(t, "ROLES=api", limit)
	ctx, stop := context.WithCancel(t.Context())
	a := &attackers{ctx: ctx, addr: p.addr, calls: calls}
	t.Cleanup(a.Wait)
	t.Cleanup(stop)
	attack(t, a)
	time.Sleep(lasting)
	stop()
	got := peakMiB(t, p.cmd.Process.Pid)
	t.Logf("%d MiB at most", got)
	if got > mostMemory {
		t.Errorf("%d MiB at most, want less than %d", got, mostMemory)
	}
}

// attacks are what clients do that hold the most memory.
var attacks = map[string]func(t *testing.T, a *attackers){
	"watches over gRPC that nobody reads": func(t *testing.T, a *attackers) {
		for range watches {
			a.unread(t, catalogv1.CatalogService_WatchCatalogEntries_FullMethodName, &catalogv1.WatchCatalogEntriesRequest{})
		}
	},
	"watches over REST that nobody reads": func(t *testing.T, a *attackers) {
		for range watches {
			a.dial(t, "GET /v1/catalogEntries:watch HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	},
	"lists over gRPC": func(t *testing.T, a *attackers) {
		for range lists {
			conn := a.grpc(t)
			a.again(func() error {
				_, err := catalogv1.NewCatalogServiceClient(conn).ListCatalogEntries(a.ctx, &catalogv1.ListCatalogEntriesRequest{PageSize: 1000})
				return err
			})
		}
	},
	"lists over REST": func(t *testing.T, a *attackers) {
		for range lists {
			a.again(func() error {
				response, err := http.Get("http://" + a.addr + "/v1/catalogEntries?pageSize=1000")
				if err != nil {
					return err
				}
				defer response.Body.Close()
				_, err = io.Copy(io.Discard, response.Body)
				return err
			})
		}
	},
	"lists over gRPC that nobody reads": func(t *testing.T, a *attackers) {
		for range a.calls {
			a.unread(t, videov1.VideoService_ListVideos_FullMethodName, &videov1.ListVideosRequest{PageSize: 1000})
		}
	},
	"lists over REST that nobody reads": func(t *testing.T, a *attackers) {
		for range a.calls {
			a.dial(t, "GET /v1/videos?pageSize=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	},
	"entries over REST that nobody reads": func(t *testing.T, a *attackers) {
		for range a.calls {
			a.dial(t, "GET /v1/videos/"+largeID+" HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	},
	"requests over gRPC that do not end": func(t *testing.T, a *attackers) {
		client := &http.Client{Transport: &http.Transport{Protocols: http2Only()}}
		t.Cleanup(client.CloseIdleConnections)
		for range a.calls {
			body := io.MultiReader(bytes.NewReader([]byte{0, 0, 3, 255, 255}), strings.NewReader(strings.Repeat("x", 255<<10)), never{a.ctx})
			r, err := http.NewRequestWithContext(a.ctx, http.MethodPost, "http://"+a.addr+videov1.VideoService_CreateVideo_FullMethodName, body)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/grpc")
			a.Go(func() {
				if response, err := client.Do(r); err == nil {
					_ = response.Body.Close()
				}
			})
		}
	},
	"requests over gRPC, byte by byte": func(t *testing.T, a *attackers) {
		client := &http.Client{Transport: &http.Transport{Protocols: http2Only()}}
		t.Cleanup(client.CloseIdleConnections)
		for range 50 {
			text := io.MultiReader(bytes.NewReader([]byte{0, 0, 3, 255, 255}), strings.NewReader(strings.Repeat("x", 10_000)))
			r, err := http.NewRequestWithContext(a.ctx, http.MethodPost, "http://"+a.addr+videov1.VideoService_CreateVideo_FullMethodName, io.MultiReader(iotest.OneByteReader(text), never{a.ctx}))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/grpc")
			a.Go(func() {
				if response, err := client.Do(r); err == nil {
					_ = response.Body.Close()
				}
			})
		}
	},
	"requests over REST that do not end": func(t *testing.T, a *attackers) {
		for range a.calls {
			a.dial(t, "POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n{\"title\":\""+strings.Repeat("x", 255<<10))
		}
	},
}

const (
	watches = 500  // that there is room for
	calls   = 1000 // likewise, of one kind or of all together
	lists   = 60
)

type attackers struct {
	sync.WaitGroup
	ctx   context.Context
	addr  string
	calls int // of each kind
	conn  *grpc.ClientConn
	used  int
}

func (a *attackers) grpc(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(a.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// unread makes a call whose responses nobody reads.
func (a *attackers) unread(t *testing.T, method string, request any) {
	t.Helper()
	if a.used%250 == 0 { // as many as a connection may have
		a.conn = a.grpc(t)
	}
	a.used++
	stream, err := a.conn.NewStream(a.ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(request); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

// dial sends a request, and reads no response.
func (a *attackers) dial(t *testing.T, request string) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", a.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10) // what the system keeps is not the server's
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
}

func (a *attackers) again(call func() error) {
	a.Go(func() {
		for a.ctx.Err() == nil {
			_ = call()
		}
	})
}

type never struct{ ctx context.Context }

func (n never) Read([]byte) (int, error) {
	<-n.ctx.Done()
	return 0, n.ctx.Err()
}

func http2Only() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

const largeID = "00000000-0000-7000-8000-000000000001"

// storeLarge stores videos as large as the contract allows, and their entries.
func (s *stack) storeLarge(t *testing.T, n int) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time, publish_time)
		SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, repeat(U&'\+01F3AC', 200), repeat(U&'\+01F3AC', 10000), 2000, 0, 'en',
			ARRAY(SELECT repeat(U&'\+01F3AC', 48) || i FROM generate_series(10, 59) i), 'published', 1, now(), now(), now() FROM generate_series(1, $1::int) n`,
		`INSERT INTO video_catalog_read.video_projection (video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version,
			publish_time, update_time, search, change_xid, updated_at)
		SELECT id, title, description, release_year, duration_ms, language_code, tags, true, false, version, publish_time, update_time, '', pg_current_xact_id(), now()
		FROM video_catalog.videos WHERE id::text LIKE '00000000-0000-7000-8000-%' AND $1 > 0`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql, n); err != nil {
			t.Fatal(err)
		}
	}
}

func peakMiB(t *testing.T, pid int) (n int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := bytes.Cut(status, []byte("VmHWM:"))
	if _, err := fmt.Sscanf(string(bytes.TrimSpace(line)), "%d kB", &n); err != nil {
		t.Fatal(err)
	}
	return n >> 10
}
