package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/pg/pgtest"
)

// personURL returns the URL of the database for a new user with the role support_ro, which only reads.
func (s *stack) personURL(t *testing.T) string {
	t.Helper()
	name := "person_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	user := pgx.Identifier{name}.Sanitize()
	pgtest.Execute(t, s.pool, "CREATE USER "+user+" IN ROLE support_ro")
	t.Cleanup(func() {
		if _, err := s.pool.Exec(context.WithoutCancel(t.Context()), "DROP USER "+user); err != nil {
			t.Error(err)
		}
	})
	return s.url + "&user=" + name
}

func (p *process) videos() videov1.VideoServiceClient { return videov1.NewVideoServiceClient(p.conn) }

func (p *process) catalog() catalogv1.CatalogServiceClient {
	return catalogv1.NewCatalogServiceClient(p.conn)
}

// command runs a command of the program to its end.
func (s *stack) command(t testing.TB, args ...string) (stdout string, err error) {
	t.Helper()
	return s.commandIn(t, nil, args...)
}

// commandIn runs a command with more variables in the environment.
func (s *stack) commandIn(t testing.TB, extra []string, args ...string) (stdout string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = s.environ(extra...)
	if args[0] == "migrate" {
		cmd.Env = append(cmd.Env, "DATABASE_URL="+s.migrateURL)
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, errOut.String())
	}
	return out.String(), nil
}

func (s *stack) count(t testing.TB, sql string, args ...any) int {
	t.Helper()
	return pgtest.Count(t, s.pool, sql, args...)
}

// exitOf returns the exit code of a command that a test has run.
func exitOf(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return app.ExitCode(err)
}

// audited counts the entries of both audits.
func (s *stack) audited(t *testing.T) int {
	t.Helper()
	return s.count(t, "SELECT (SELECT count(*) FROM video_catalog.audit) + (SELECT count(*) FROM video_catalog_read.audit)")
}
