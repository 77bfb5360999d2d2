// Command pooler runs a real PgBouncer in transaction mode in front of a PostgreSQL of localpg, for the tests that
// internal/pg/pgtest runs with PGTEST_POOLER. Its argument is the folder of PostgreSQL's socket, where it
// makes its own.
//
// It is the strictest kind of pooler that the service may meet. Each transaction goes to the next server connection
// in turn. Prepared statements, SET, LISTEN and session locks get lost or affect other clients. Nothing is reset in
// between, and start-up parameters are refused. Databases and users have the same names as on the server.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// directories are where installers put pgbouncer: the tests start this program without a PATH.
var directories = []string{"/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"}

func main() {
	err := run(os.Args[1])
	fmt.Fprintln(os.Stderr, "pooler:", err)
	os.Exit(1)
}

// run replaces this process by PgBouncer.
func run(folder string) error {
	program, err := find()
	if err != nil {
		return err
	}
	// https://www.pgbouncer.org/config.html. The folder is the protection: only the server's user and root can enter it.
	users, config := filepath.Join(folder, "pgbouncer.users"), filepath.Join(folder, "pgbouncer.ini")
	lines := []string{
		"[databases]",
		"* = host=" + folder + " port=5432 auth_user=postgres", // the pooler asks for the other users as postgres
		"[pgbouncer]",
		"pool_mode = transaction",
		"listen_addr =",
		"listen_port = 6432", // a part of the socket's name: there is no port
		"unix_socket_dir = " + folder,
		"auth_type = trust",
		"auth_file = " + users,
		"server_round_robin = 1", // the next connection in turn; the default is the last one used
		// More than the open transactions of any test: one that waits for another must not also wait for a connection.
		"default_pool_size = 20",
		"max_client_conn = 1000",
		"server_login_retry = 1",
		"query_wait_timeout = 30", // seconds
		"log_connections = 0",
		"log_disconnections = 0",
	}
	for name, text := range map[string]string{config: strings.Join(lines, "\n") + "\n", users: "\"postgres\" \"\"\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return syscall.Exec(program, []string{program, config}, os.Environ()) //nolint:gosec // one of directories
}

// find returns the path of pgbouncer.
func find() (string, error) {
	for _, directory := range directories {
		path := filepath.Join(directory, "pgbouncer")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no pgbouncer found: run sudo apt-get install -y pgbouncer (Debian, Ubuntu) or brew install pgbouncer")
}
