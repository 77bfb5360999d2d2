package service

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"example.com/videocatalog/internal/pg/pgtest"
)

// mostMemory is the memory of an instance of deploy/run, in MiB.
const mostMemory = 512

// The process needs less memory than its instance has, whatever is stored and clients do. Here they make as many watches and
// calls as there is room for, of all kinds that hold memory, with entries as large as the contract allows.
func TestMemoryIsBounded(t *testing.T) {
	database := pgtest.URL(t)
	storeLarge(t, database, 300)
	p := startService(t, environ("ROLES=api", "DATABASE_URL="+database, "GOMEMLIMIT=400MiB")...)
	const watches, readers, each = 500, 60, 200
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	for range watches {
		p.unread(t, "GET /v1/catalogEntries:watch HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	for range each {
		p.unread(t, "GET /v1/videos?pageSize=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
		p.unread(t, "GET /v1/videos/00000000-0000-7000-8000-000000000001 HTTP/1.1\r\nHost: x\r\n\r\n")
		p.unread(t, "POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n{\"title\":\""+strings.Repeat("x", 255<<10))
	}
	c := p.rawHTTP2(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for range each {
		must(t, c.call(list, "\x08\xe8\x07")) // page_size: 1000
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	overHTTP2 := &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	t.Cleanup(overHTTP2.CloseIdleConnections)
	send := func(client *http.Client, method, path string, body io.Reader) {
		request, err := http.NewRequestWithContext(ctx, method, "http://"+p.addr+path, body)
		must(t, err)
		if method == http.MethodPost {
			request.Header.Set("Content-Type", "application/grpc")
		}
		if response, err := client.Do(request); err == nil { // none when the test is over
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
	}
	for range each { // requests that do not end
		never, _ := io.Pipe()
		body := io.MultiReader(bytes.NewReader([]byte{0, 0, 3, 255, 255}), strings.NewReader(strings.Repeat("x", 255<<10)), never)
		reading.Go(func() { send(overHTTP2, http.MethodPost, create, body) })
	}
	for range readers {
		reading.Go(func() {
			for ctx.Err() == nil {
				send(http.DefaultClient, http.MethodGet, "/v1/catalogEntries?pageSize=1000", nil)
				send(overHTTP2, http.MethodPost, "/catalog.v1.CatalogService/ListCatalogEntries", strings.NewReader("\x00\x00\x00\x00\x03\x08\xe8\x07"))
			}
		})
	}
	time.Sleep(5 * time.Second)
	stop()
	reading.Wait()
	got := p.peak(t)
	p.stop(t)
	t.Logf("%d MiB at most", got)
	if got > mostMemory {
		t.Errorf("%d MiB at most, want less than %d", got, mostMemory)
	}
}

// unread sends a request, and reads no response. The operating system's buffers do not count.
func (p *process) unread(t *testing.T, request string) {
	t.Helper()
	conn := p.dial(t)
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, err := io.WriteString(conn, request)
	must(t, err)
}

// storeLarge stores videos as large as the contract allows, and their entries.
func storeLarge(t *testing.T, database string, n int) {
	t.Helper()
	pool := pgtest.Open(t, database, 1)
	for _, sql := range []string{
		`INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time, publish_time)
		SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, repeat(U&'\+01F3AC', 200), repeat(U&'\+01F3AC', 10000), 2000, 0, 'en',
			ARRAY(SELECT repeat(U&'\+01F3AC', 48) || i FROM generate_series(10, 59) i), 'published', 1, now(), now(), now() FROM generate_series(1, $1::int) n`,
		`INSERT INTO video_catalog_read.video_projection (video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version,
			publish_time, update_time, search, change_xid, updated_at)
		SELECT id, title, description, release_year, duration_ms, language_code, tags, true, false, version, publish_time, update_time, '', pg_current_xact_id(), now()
		FROM video_catalog.videos WHERE $1 > 0`,
	} {
		pgtest.Execute(t, pool, sql, n)
	}
}
