package pgtest

// This file has what only the tests and benchmarks of the template need.
//
// If the environment variable PGTEST_POOLER names a pooler, Main starts the pooler in front of the server,
// and URL and Pool use it. So the same tests show that the code depends on no session state. A test
// that needs a session calls Direct.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

var (
	pooler *localpg.Process // in front of the server; nil: none
	folder string           // directory of the server's data during benchmarks
)

// labConfig returns the settings of the server.
func labConfig() (cfg localpg.Config, err error) {
	flag.Parse()
	// PostgreSQL allows no prepared transactions by default, and the service needs none. A benchmark
	// compares them with the outbox. Sixteen cost some kilobytes of memory.
	cfg.Settings = map[string]string{"max_prepared_transactions": "16", "log_line_prefix": "%m [%p] %d "}
	if bench := flag.Lookup("test.bench"); bench == nil || bench.Value.String() == "" {
		return cfg, nil
	}
	// Benchmarks use a disk with fsync, as production does.
	if cfg.Dir, err = os.MkdirTemp("", "pgtest"); err != nil {
		return cfg, err
	}
	folder = cfg.Dir
	maps.Copy(cfg.Settings, map[string]string{"shared_buffers": "512MB", "max_wal_size": "4GB", "max_connections": "100"})
	return cfg, os.Chmod(folder, 0o755) // if we are root, the server runs as another user, who needs access
}

// poolerVariable is the environment variable with the program of a pooler. The program's argument
// is the folder of the server's socket, and there it makes a socket for port 6432.
const poolerVariable = "PGTEST_POOLER"

// StartPooler starts the pooler in front of a server, and returns when it accepts connections.
// Stop it before the server. It returns nil if there is no pooler.
func StartPooler(ctx context.Context, server *localpg.Server) (*localpg.Process, error) {
	program := os.Getenv(poolerVariable)
	if program == "" {
		return nil, nil
	}
	path := filepath.Join(server.Folder(), "pooler.log")
	log, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the pooler has its own copy
	pooler, err := server.Beside(log, program, server.Folder())
	if err != nil {
		return nil, err
	}
	for {
		conn, err := pgx.Connect(ctx, Pooled(server.DSN("postgres")))
		if err == nil {
			return pooler, conn.Close(ctx)
		}
		select {
		case <-pooler.Done():
			text, _ := os.ReadFile(path)
			return nil, fmt.Errorf("%s ended before it was ready: %s", program, text)
		case <-ctx.Done():
			pooler.Stop()
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Pooled returns the URL for a connection through the pooler. pgx prepares statements by default,
// which needs a session, so the URL sets cache_describe.
func Pooled(direct string) string {
	return strings.Replace(direct, "port=5432", "port=6432&default_query_exec_mode=cache_describe", 1)
}

// unpooled returns the URL of the same database and user without the pooler.
func unpooled(t testing.TB, target string) string {
	t.Helper()
	address, err := url.Parse(target)
	Must(t, err)
	direct, err := url.Parse(server.DSN(strings.TrimPrefix(address.Path, "/")))
	Must(t, err)
	direct.User = address.User
	return direct.String()
}

// Errors returns the errors that the server has logged for the database of a pool.
func Errors(t testing.TB, pool *pgxpool.Pool) (lines []string) {
	t.Helper()
	log, err := os.ReadFile(server.Log())
	Must(t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, " "+pool.Config().ConnConfig.Database+" ERROR:") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Same checks that two values are equal. It does not end the test.
func Same(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// WantCount checks the number that a query returns. It does not end the test.
func WantCount(t testing.TB, in DB, want int, what, sql string, args ...any) {
	t.Helper()
	if got := Count(t, in, sql, args...); got != want {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

// Settlement returns the settlement of a claim. It calls refuse, which stands for the broker,
// with each event that is sent.
func Settlement(claim outbox.Claim, refuse func(outbox.Claimed) bool) outbox.Settlement {
	s := outbox.Settlement{Lease: claim.Lease, Resumed: make(map[envelope.Aggregate]int64)}
	stopped := make(map[envelope.Aggregate]bool)
	for _, e := range claim.Events {
		_, resumed := s.Resumed[e.Aggregate()]
		isRefused := !e.Behind && !stopped[e.Aggregate()] && refuse(e)
		switch {
		case e.Behind, stopped[e.Aggregate()], isRefused:
			if !e.Deferred {
				s.Defer = append(s.Defer, e.Seq)
			}
			if isRefused && !resumed {
				s.Refused = append(s.Refused, outbox.Refusal{Aggregate: e.Aggregate(), Seq: e.Seq, Attempts: e.Attempts + 1, Error: "refused", RetryIn: time.Hour})
			}
			stopped[e.Aggregate()] = stopped[e.Aggregate()] || isRefused
		case !e.Deferred:
			s.Published = append(s.Published, e.Seq)
		default:
			s.Resumed[e.Aggregate()] = e.Seq
		}
	}
	return s
}
