// Package localbouncer starts a real PgBouncer in transaction mode in front of a server of
// localpg. Tests use it to show that our code does not depend on the state of a session.
//
// It is the strictest kind of pooler that the service may meet. Each transaction goes to
// the next server connection in turn. Prepared statements, SET, LISTEN and session locks
// get lost or affect other clients. Nothing is reset in between, and start-up parameters
// are refused. Every database and user of the server has the same name here.
//
// The socket is next to the server's, in a folder that only its user and root may enter.
// There is no password and no TCP port. On Linux the kernel ends the pooler when our
// process is killed.
//
// It is not for production, and not for sessions: LISTEN and session locks need the server
// itself.
package localbouncer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localpg"
)

// ErrNotFound means that PgBouncer is not installed here. The error that wraps it says how
// to install it.
var ErrNotFound = errors.New("no pgbouncer found")

// poolSize is how many server connections one user has to one database. It is larger than
// the number of open transactions in any test: a transaction that waits for another must
// not also wait for a connection.
const poolSize = 20

// port is only a part of the socket's name.
const port = 6432

// Bouncer is a running PgBouncer.
type Bouncer struct {
	process *localpg.Process
	logFile string
}

// Start starts a PgBouncer in front of a server, and returns when it accepts connections.
// ctx limits only the start. Stop it before the server. The error wraps ErrNotFound if
// PgBouncer is not installed.
func Start(ctx context.Context, server *localpg.Server) (*Bouncer, error) {
	b := &Bouncer{logFile: filepath.Join(server.Folder(), "pgbouncer.log")}
	if err := b.start(ctx, server); err != nil {
		return nil, fmt.Errorf("start PgBouncer: %w", err)
	}
	return b, nil
}

// URL changes a URL of the server so that it goes through the pooler.
func URL(direct string) (string, error) {
	u, err := url.Parse(direct)
	if err != nil {
		return "", fmt.Errorf("parse URL of the server: %w", err)
	}
	query := u.Query()
	query.Set("port", strconv.Itoa(port))
	query.Set("default_query_exec_mode", "cache_describe") // the default prepares statements, which needs a session
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// Stop ends the pooler and its connections.
func (b *Bouncer) Stop() { b.process.Stop() }

func (b *Bouncer) start(ctx context.Context, server *localpg.Server) error {
	program, err := find()
	if err != nil {
		return err
	}
	direct, err := url.Parse(server.DSN("postgres"))
	if err != nil {
		return err
	}
	// https://www.pgbouncer.org/config.html. The folder is the protection: a process that
	// may enter it may be any user, as with the server.
	users := filepath.Join(server.Folder(), "pgbouncer.users")
	config := filepath.Join(server.Folder(), "pgbouncer.ini")
	lines := []string{
		"[databases]",
		fmt.Sprintf("* = host=%s port=%s auth_user=postgres", server.Folder(), direct.Query().Get("port")), // the pooler asks for the other users as postgres
		"[pgbouncer]",
		"pool_mode = transaction",
		"listen_addr =",
		fmt.Sprintf("listen_port = %d", port),
		"unix_socket_dir = " + server.Folder(),
		"auth_type = trust",
		"auth_file = " + users,
		"server_round_robin = 1", // the next connection in turn; the default is the last one used
		fmt.Sprintf("default_pool_size = %d", poolSize),
		"max_client_conn = 1000",
		"server_login_retry = 1",
		"query_wait_timeout = 30", // seconds
		"log_connections = 0",
		"log_disconnections = 0",
	}
	for name, content := range map[string]string{config: strings.Join(lines, "\n") + "\n", users: "\"postgres\" \"\"\n"} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil { // the server's user must read it; nobody else can enter the folder
			return err
		}
	}
	log, err := os.Create(b.logFile)
	if err != nil {
		return err
	}
	defer log.Close() // the pooler has its own copy
	if b.process, err = server.Beside(log, program, config); err != nil {
		return err
	}
	pooled, err := URL(direct.String())
	if err == nil {
		err = b.wait(ctx, pooled)
	}
	if err != nil {
		b.Stop()
	}
	return err
}

// wait returns when the pooler accepts connections.
func (b *Bouncer) wait(ctx context.Context, pooled string) error {
	for {
		conn, err := pgx.Connect(ctx, pooled)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-b.process.Done():
			return fmt.Errorf("it ended before it was ready%s", b.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%w%s", errors.Join(context.Cause(ctx), err), b.logTail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// logTail returns the end of the log, to append to an error.
func (b *Bouncer) logTail() string {
	text, _ := os.ReadFile(b.logFile)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "; its log ends:\n\t" + strings.Join(lines[max(0, len(lines)-10):], "\n\t")
}

// find returns the path of pgbouncer. Debian installs it outside the PATH of normal users.
func find() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return filepath.Abs(path)
	}
	for _, path := range []string{"/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: run sudo apt-get install -y pgbouncer (Debian, Ubuntu) or brew install pgbouncer", ErrNotFound)
}
