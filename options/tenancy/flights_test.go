package tenancy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/tenant"
)

// flights counts how often a client sends to a server after the server has sent: the round trips of one connection.
type flights struct {
	count atomic.Int64
	last  atomic.Int64 // who sent last: 0 the server, 1 the client
}

// counted opens a pool of one connection to the database of a URL, through a proxy that counts its round trips.
func counted(t testing.TB, address string) (*pgxpool.Pool, *flights) {
	t.Helper()
	to, err := url.Parse(address)
	must(t, err)
	folder, err := os.MkdirTemp("", "flights") // short: the path of a socket has at most 107 bytes
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	query := to.Query()
	socket := ".s.PGSQL." + query.Get("port")
	server := filepath.Join(query.Get("host"), socket)
	listener, err := net.Listen("unix", filepath.Join(folder, socket))
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	f := new(flights)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("unix", server)
			if err != nil {
				client.Close()
				return
			}
			go f.copy(upstream, client, 1)
			go f.copy(client, upstream, 0)
		}
	}()
	query.Set("host", folder)
	to.RawQuery = query.Encode()
	return pgtest.Open(t, to.String(), 1), f
}

func (f *flights) copy(to io.WriteCloser, from io.Reader, who int64) {
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && f.last.Swap(who) != who && who == 1 {
			f.count.Add(1)
		}
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// rows makes two tables with n rows: letters of two tenants, and plain ones without tenants and row security.
func (f *fixture) rows(t testing.TB, n int) {
	t.Helper()
	pgtest.Execute(t, f.admin, fmt.Sprintf(`
		CREATE TABLE video_catalog.plain_1 (tenant_id text NOT NULL, id uuid PRIMARY KEY, note text NOT NULL, create_time timestamptz NOT NULL DEFAULT now());
		CREATE INDEX ON video_catalog.plain_1 (create_time, id);
		GRANT SELECT, INSERT, UPDATE ON video_catalog.plain_1 TO video_catalog_rw;
		INSERT INTO video_catalog.letters_1 (tenant_id, id, note, create_time)
			SELECT CASE g %% 2 WHEN 0 THEN 'acme' ELSE 'other' END, gen_random_uuid(), repeat('n', 100), now() - g * interval '1 second' FROM generate_series(1, %d) g;
		INSERT INTO video_catalog.plain_1 SELECT 'acme', id, note, create_time FROM video_catalog.letters_1;
		ANALYZE video_catalog.letters_1, video_catalog.plain_1`, n))
}

// The same page, of a table with tenants and of one without.
const (
	pageOfTenant = "SELECT tenant_id FROM video_catalog.letters_1 WHERE tenant_id = $1 AND (create_time, id) < ($2, $3) ORDER BY create_time DESC, id DESC LIMIT 20"
	pageOfAll    = "SELECT tenant_id FROM video_catalog.plain_1 WHERE $1 <> '' AND (create_time, id) < ($2, $3) ORDER BY create_time DESC, id DESC LIMIT 20"
)

func readPage(ctx context.Context, pool *pgxpool.Pool) error {
	sql := pageOfAll
	if tenant.Of(ctx) != "" {
		sql = pageOfTenant
	}
	_, err := owners(ctx, pg.Autocommit(pool), sql, "acme", time.Now(), uuid.Max)
	return err
}

func writeOne(ctx context.Context, pool *pgxpool.Pool) error {
	if tenant.Of(ctx) != "" {
		_, err := write(ctx, pool, "acme", "note")
		return err
	}
	id := uuid.Must(uuid.NewV7())
	_, err := pg.NewCommandSide(pool, "letter", nil).Create(ctx, "write", uuid.Nil, nil, id, recordIn("plain_1", "acme", id, "note"))
	return err
}

// A call with a tenant takes as many round trips as one without.
func TestTenantCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rows(t, 100)
	with, flightsWith := counted(t, f.url(f.name+"_calls"))
	without, flightsWithout := counted(t, f.url(f.name+"_loops"))
	for name, call := range map[string]func(context.Context, *pgxpool.Pool) error{"read a page": readPage, "write": writeOne} {
		measure := func(ctx context.Context, pool *pgxpool.Pool, f *flights) int64 {
			var before int64
			for i := range 12 {
				if i == 2 { // the statements are prepared now
					before = f.count.Load()
				}
				if err := call(ctx, pool); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			return f.count.Load() - before
		}
		got, want := measure(acme(t), with, flightsWith), measure(t.Context(), without, flightsWithout)
		if got != want || want < 10 {
			t.Errorf("%s, ten times: %d round trips with a tenant and %d without, want the same", name, got, want)
		}
	}
}
