package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// commandTimeout is how long one run of a command may take.
	commandTimeout = time.Minute
	// commandPatience is how long a command is repeated while it fails. No fault lasts as long.
	commandPatience = 2 * time.Minute
)

// outcome is the result of one run of a command.
type outcome struct {
	code   int // exit code
	stdout string
	stderr string
}

// command runs a command of the service, as an operator does while the service runs.
func (l *lab) command(ctx context.Context, args ...string) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	start := time.Now()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, l.present, args...) //nolint:gosec // we have built it
	cmd.Env, cmd.Stdout, cmd.Stderr = l.operator.environ, &stdout, &stderr
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return outcome{}, fmt.Errorf("server %s: %w", strings.Join(args, " "), err)
	}
	o := outcome{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	l.timeline.InfoContext(ctx, "command", "args", args, "code", o.code, "ms", time.Since(start).Milliseconds(), "stdout", o.stdout, "stderr", o.stderr)
	return o, nil
}

// untilDone repeats a command until its exit code is one of codes. A command that fails for longer
// than any fault lasts breaks a rule, and so does a usage error.
func (l *lab) untilDone(ctx context.Context, codes []int, args []string) (ok bool, err error) {
	var o outcome
	for deadline := time.Now().Add(commandPatience); ctx.Err() == nil; sleep(ctx, 200*time.Millisecond) {
		if o, err = l.command(ctx, args...); err != nil {
			return false, err
		}
		if slices.Contains(codes, o.code) {
			return true, nil
		}
		const exitUsage = 2
		if o.code == exitUsage || time.Now().After(deadline) {
			break
		}
	}
	if ctx.Err() == nil {
		l.problem(CommandFailed, "server %s: exit code %d: %s%s", strings.Join(args, " "), o.code, o.stdout, o.stderr)
	}
	return false, nil
}

// ask reads one value from the database, which may be restarting.
func (l *lab) ask(ctx context.Context, to any, sql string, args ...any) error {
	return l.reach(ctx, func(ctx context.Context, c conn) error { return c.QueryRow(ctx, sql, args...).Scan(to) })
}

// reach repeats look until it succeeds or finds no row, for at most commandPatience.
func (l *lab) reach(ctx context.Context, f func(context.Context, conn) error) error {
	for deadline := time.Now().Add(commandPatience); ; {
		err := l.look(ctx, f)
		if err == nil || errors.Is(err, pgx.ErrNoRows) || time.Now().After(deadline) || !sleep(ctx, 50*time.Millisecond) {
			return err
		}
	}
}
