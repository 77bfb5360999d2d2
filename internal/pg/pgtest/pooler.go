package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localpg"
)

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
