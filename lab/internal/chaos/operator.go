package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
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
	code   int // exit code; -1: it was killed
	stdout string
	stderr string
}

// command runs a command of the service, as a person does beside it. It kills the command when
// kill, which may be nil, returns true.
func (l *lab) command(ctx context.Context, kill func(context.Context) bool, args ...string) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	start := time.Now()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, l.present, args...) //nolint:gosec // we have built it
	cmd.Env, cmd.Stdout, cmd.Stderr = l.operator.environ, &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return outcome{}, fmt.Errorf("start server %s: %w", strings.Join(args, " "), err)
	}
	watched := make(chan struct{})
	watching, stop := context.WithCancel(ctx)
	go func() {
		defer close(watched)
		if kill != nil && kill(watching) {
			_ = cmd.Process.Kill() // it may have ended
		}
	}()
	err := cmd.Wait()
	stop()
	<-watched
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return outcome{}, fmt.Errorf("server %s: %w", strings.Join(args, " "), err)
	}
	o := outcome{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	l.timeline.add("command", "args", args, "code", o.code, "ms", time.Since(start).Milliseconds(), "stdout", o.stdout, "stderr", o.stderr)
	return o, nil
}

// untilDone repeats a command until its exit code is one of these. A command that fails for longer
// than any fault lasts breaks a rule.
func (l *lab) untilDone(ctx context.Context, codes []int, args []string) (o outcome, ok bool, err error) {
	for deadline := time.Now().Add(commandPatience); ctx.Err() == nil; sleep(ctx, 200*time.Millisecond) {
		if o, err = l.command(ctx, nil, args...); err != nil {
			return o, false, err
		}
		if slices.Contains(codes, o.code) {
			return o, true, nil
		}
		const exitUsage = 2
		if o.code == exitUsage || time.Now().After(deadline) {
			break
		}
	}
	if ctx.Err() == nil {
		l.problem(CommandFailed, "server %s: exit code %d: %s%s", strings.Join(args, " "), o.code, o.stdout, o.stderr)
	}
	return o, false, nil
}

// difference is a line of the output of a comparison: an entry that differs, or the summary.
type difference struct {
	ID          uuid.UUID `json:"id"`
	Kind        string    `json:"kind"`
	Differences int64     `json:"differences"`
	Pending     int64     `json:"pending"`
}

// parseDifferences parses the output of projection compare --json.
func parseDifferences(stdout string) (found []difference, sum difference, err error) {
	for line := range strings.Lines(stdout) {
		var d difference
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			return nil, sum, fmt.Errorf("read the differences: %s: %w", line, err)
		}
		if d.Kind == "" {
			sum = d
		} else {
			found = append(found, d)
		}
	}
	return found, sum, nil
}

// cannotBe reports whether the owner, which has lost nothing, rules this difference out at
// any time. An entry that is missing or behind waits for its event.
func (d difference) cannotBe() bool { return d.Kind != "missing" && d.Kind != "behind" }

// compareAtTheEnd compares the catalog with its owner when all events are processed. Then
// nothing may differ.
func (l *lab) compareAtTheEnd(ctx context.Context) {
	o, err := l.command(ctx, nil, "projection", "compare", "--json")
	var sum difference
	if err == nil {
		_, sum, err = parseDifferences(o.stdout)
	}
	if err != nil || o.code != 0 || sum.Differences+sum.Pending > 0 {
		l.problem(ComparisonWrong, "when all events are processed: exit code %d, %v: %s%s", o.code, err, o.stdout, o.stderr)
	}
}

// ask reads one value from the database, which may be restarting.
func (l *lab) ask(ctx context.Context, to any, sql string, args ...any) error {
	return l.reach(ctx, func(ctx context.Context, c conn) error { return c.QueryRow(ctx, sql, args...).Scan(to) })
}

// reach calls f as look does, again and again until it succeeds.
func (l *lab) reach(ctx context.Context, f func(context.Context, conn) error) error {
	for deadline := time.Now().Add(commandPatience); ; {
		err := l.look(ctx, f)
		if err == nil || errors.Is(err, pgx.ErrNoRows) || time.Now().After(deadline) || !sleep(ctx, 50*time.Millisecond) {
			return err
		}
	}
}

// copied records that a command may have brought every event so far into the catalog, also
// before it was published.
func (l *lab) copied(ctx context.Context, record *FaultRecord) {
	if err := l.ask(ctx, &record.Copied, `SELECT coalesce(max(n), 0) FROM chaos.events`); err != nil {
		record.Copied = math.MaxInt64
	}
}

// killed is the exit code of a command that was killed.
const killed = -1
