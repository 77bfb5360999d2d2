package catalog_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// refusing starts a server that sends says to each client: while it connects, or
// as the reply to its statements. It returns the URL, and counts the connections.
func refusing(t *testing.T, whileConnecting bool, says pgproto3.ErrorResponse) (url string, connections *atomic.Int64) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	connections = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			go refuse(conn, whileConnecting, says)
		}
	}()
	return "postgres://u:p@" + listener.Addr().String() + "/d?sslmode=disable", connections
}

func refuse(conn net.Conn, whileConnecting bool, says pgproto3.ErrorResponse) {
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	if !whileConnecting {
		backend.Send(&pgproto3.AuthenticationOk{})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
	}
	for {
		if !whileConnecting {
			switch message, err := backend.Receive(); {
			case err != nil:
				return
			case !ends(message):
				continue
			}
		}
		backend.Send(&says)
		if whileConnecting || says.Severity != "ERROR" {
			_ = backend.Flush() // the client may have left
			return
		}
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
	}
}

// ends reports whether the server has to reply to a message.
func ends(message pgproto3.FrontendMessage) bool {
	switch message.(type) {
	case *pgproto3.Sync, *pgproto3.Query:
		return true
	}
	return false
}

// An error of a server or a pooler is Unavailable, under any code, if it comes while a
// connection is made, or ends a connection. An error after which a retry may succeed,
// later or in another session, is Unavailable, too. No event is blamed for them.
func TestWhatPoolersSayIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		connecting bool
		says       pgproto3.ErrorResponse
		want       problem.Kind
		hint       string // in the text of the error
	}{
		{"Supavisor, no connection in time", false, pgproto3.ErrorResponse{Severity: "FATAL", Code: "XX000", Message: "(ECHECKOUTTIMEOUT) unable to check out connection from the pool after 60000ms"}, problem.Unavailable, "ECHECKOUTTIMEOUT"},
		{"Supavisor, too many clients", true, pgproto3.ErrorResponse{Severity: "FATAL", Code: "XX000", Message: "(EMAXCONN) max client connections reached"}, problem.Unavailable, "EMAXCONN"},
		{"Supavisor, locked out", true, pgproto3.ErrorResponse{Severity: "FATAL", Code: "XX000", Message: "(ECIRCUITBREAKER) too many authentication failures"}, problem.Unavailable, "ECIRCUITBREAKER"},
		{"PgBouncer, no connection in time", false, pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "query_wait_timeout"}, problem.Unavailable, "query_wait_timeout"},
		{"PgBouncer, too many clients", true, pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "no more connections allowed (max_client_conn)"}, problem.Unavailable, "max_client_conn"},
		{"password changed", true, pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "28P01", Message: "password authentication failed"}, problem.Unavailable, "28P01"},
		{"database missing", true, pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "3D000", Message: "database does not exist"}, problem.Unavailable, "3D000"},
		{"translated", false, pgproto3.ErrorResponse{Severity: "致命错误", SeverityUnlocalized: "FATAL", Code: "XX000", Message: "any"}, problem.Unavailable, "XX000"},
		{"PostgreSQL, panic", false, pgproto3.ErrorResponse{Severity: "PANIC", SeverityUnlocalized: "PANIC", Code: "XX000", Message: "could not write"}, problem.Unavailable, "PANIC"},
		{"PostgreSQL, transaction too long", false, pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "25P04", Message: "terminating connection due to transaction timeout"}, problem.Unavailable, "25P04"},
		{"read-only", false, pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "25006", Message: "cannot execute in a read-only transaction"}, problem.Unavailable, "25006"},
		{"schema changed", false, pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "0A000", Message: "cached plan must not change result type", Routine: "RevalidateCachedQuery"}, problem.Unavailable, "cached plan"},
		{"statement lost", false, pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "26000", Message: "prepared statement does not exist"}, problem.Unavailable, "default_query_exec_mode=cache_describe"},
		{"statement of another", false, pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "42P05", Message: "prepared statement exists"}, problem.Unavailable, "default_query_exec_mode=cache_describe"},
		{"not supported", false, pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "0A000", Message: "not supported"}, 0, "not supported"},
		{"a bug of the server", false, pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "XX000", Message: "cache lookup failed"}, 0, "cache lookup"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url, _ := refusing(t, test.connecting, test.says)
			pool, err := db.Open(t.Context(), url, 2, nil)
			must(t, err)
			defer pool.Close()
			videos, catalog := store.NewVideos(pool, nil), store.NewCatalog(pool)
			_, get := videos.GetVideo(t.Context(), newID(t))
			_, create := videos.CreateVideo(t.Context(), uuid.Nil, nil, created(t, "Ran"))
			_, claim := pg.NewOutbox(pool).ClaimEvents(t.Context(), outbox.Limits{Lanes: 1, Events: 1, Bytes: 1, Lease: 1})
			for name, err := range map[string]error{"GetVideo": get, "CreateVideo": create, "ClaimEvents": claim} {
				if kindOf(err) != test.want || !strings.Contains(fmt.Sprint(err), test.hint) {
					t.Errorf("%s() = %v, want kind %v with %q", name, err, test.want, test.hint)
				}
			}
			// Project returns another kind only for an error of the data.
			_, project := catalog.Project(t.Context(), "catalog", []domain.VideoEvent{*created(t, "Ran")})
			if kindOf(project) != problem.Unavailable {
				t.Errorf("Project() = %v, want Unavailable", project)
			}
		})
	}
}

// Calls of a user who may log in again succeed without a restart.
func TestUserLetInAgain(t *testing.T) {
	t.Parallel()
	target := pgtest.Direct(t, pgtest.URL(t))
	admin := pgtest.Open(t, target, 2)
	user := "let_in_" + strings.ReplaceAll(newID(t).String(), "-", "")
	execute(t, admin, "CREATE ROLE "+user+" LOGIN CONNECTION LIMIT 0 IN ROLE video_catalog_rw")
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+user); err != nil {
			t.Error(err)
		}
	})
	refused := pgtest.Open(t, as(target, user), 2)
	defer refused.Close()
	videos := store.NewVideos(refused, nil)
	execute(t, admin, "ALTER ROLE "+user+" NOLOGIN")
	if _, err := videos.GetVideo(t.Context(), newID(t)); kindOf(err) != problem.Unavailable {
		t.Fatalf("GetVideo() as a user who may not log in = %v, want Unavailable", err)
	}
	execute(t, admin, "ALTER ROLE "+user+" LOGIN CONNECTION LIMIT -1")
	kinds := []problem.Kind{problem.Unavailable, problem.NotFound}
	for kind := problem.Unavailable; kind != problem.NotFound; time.Sleep(10 * time.Millisecond) {
		_, err := videos.GetVideo(t.Context(), newID(t))
		if kind = kindOf(err); !slices.Contains(kinds, kind) {
			t.Fatalf("GetVideo() = %v", err)
		}
	}
}

// sessions opens two pools of a new user, with commands and queries on all
// connections until the test ends. failed returns their errors so far.
func sessions(t *testing.T) (videos []*store.Videos, admin *pgxpool.Pool, user string, failed func() []error) {
	t.Helper()
	target := pgtest.Direct(t, pgtest.URL(t))
	admin = pgtest.Open(t, target, 2)
	user = "session_" + strings.ReplaceAll(newID(t).String(), "-", "")
	execute(t, admin, "CREATE ROLE "+user+" LOGIN IN ROLE video_catalog_rw")
	pools := []*pgxpool.Pool{pgtest.Open(t, as(target, user), 2), pgtest.Open(t, as(target, user), 2)}
	var mu sync.Mutex
	var errs []error
	var load sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() {
		stop()
		load.Wait()
		for _, pool := range pools {
			pool.Close()
		}
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+user); err != nil {
			t.Error(err)
		}
	})
	for _, pool := range pools {
		v := store.NewVideos(pool, nil)
		videos = append(videos, v)
		for range 8 {
			load.Go(func() {
				for ctx.Err() == nil {
					e := created(t, "Ran")
					_, err := v.CreateVideo(ctx, uuid.Nil, nil, e)
					if err == nil {
						_, err = v.GetVideo(ctx, e.Video.ID)
					}
					if err != nil && ctx.Err() == nil {
						mu.Lock()
						errs = append(errs, err)
						mu.Unlock()
					}
				}
			})
		}
	}
	return videos, admin, user, func() []error {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(errs)
	}
}

// awaitCommands returns when enough commands have succeeded in a row.
func awaitCommands(t *testing.T, videos []*store.Videos) {
	t.Helper()
	const enough = 200
	deadline := time.Now().Add(time.Minute)
	for n := 0; n < enough; n++ {
		if _, err := videos[n%len(videos)].CreateVideo(t.Context(), uuid.Nil, nil, created(t, "Ran")); err != nil {
			if time.Now().After(deadline) {
				t.Fatalf("there are still commands that fail: %v", err)
			}
			n = 0
		}
	}
}

// Sessions of a server that was read-only for a while, as in a failover, are not
// used again: commands succeed without a restart.
func TestReadOnlySessionsAreReplaced(t *testing.T) {
	t.Parallel()
	videos, admin, user, failed := sessions(t)
	awaitCommands(t, videos)
	const (
		restart  = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1"
		readOnly = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1"
	)
	execute(t, admin, "ALTER ROLE "+user+" SET default_transaction_read_only = on")
	execute(t, admin, restart, user)
	for before := len(failed()); len(failed()) < before+100 || count(t, admin, readOnly, user) == 0; {
		time.Sleep(time.Millisecond)
	}
	execute(t, admin, "ALTER ROLE "+user+" RESET default_transaction_read_only")
	start := time.Now()
	awaitCommands(t, videos)
	t.Logf("all was well again after %s", time.Since(start))
	for _, err := range failed() {
		if kindOf(err) != problem.Unavailable {
			t.Fatalf("a call beside it = %v, want Unavailable", err)
		}
	}
}

// After a change of a column's type, few calls of sessions with older plans
// fail, and with Unavailable.
func TestPlansOfAnOlderSchemaAreReplaced(t *testing.T) {
	t.Parallel()
	videos, admin, _, failed := sessions(t)
	awaitCommands(t, videos)
	for _, kind := range []string{"varchar(300)", "text"} {
		before := len(failed())
		execute(t, admin, "ALTER TABLE video_catalog.videos ALTER COLUMN title TYPE "+kind)
		awaitCommands(t, videos)
		t.Logf("%d calls failed for title as %s", len(failed())-before, kind)
	}
	for _, err := range failed() {
		if kindOf(err) != problem.Unavailable {
			t.Fatalf("a call beside it = %v, want Unavailable", err)
		}
	}
}
