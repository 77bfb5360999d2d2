package chaos

import (
	"bytes"
	"context"
	_ "embed" // for wallClock
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localpg"
)

// wallClock is the source of a library that changes the time of a program. The
// lab does not use https://github.com/wolfcw/libfaketime: that opens a file for
// every read of the clock, also in the signal handlers of PostgreSQL, where it
// sometimes hangs.
//
//go:embed wallclock/wallclock.c
var wallClock []byte

// noClock is the reason in the report when the clock of PostgreSQL cannot be
// set.
const noClock = "the clock of the database does not jump: that needs Linux and a C compiler (cc)"

// compiler returns the C compiler for wallClock, or "" if the machine cannot
// build or use it.
func compiler() string {
	if runtime.GOOS != "linux" {
		return ""
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		return ""
	}
	return cc
}

// fakeClock creates scripts that start PostgreSQL with the library. From its
// next start on, the clock of PostgreSQL has the offset in the file. Only the
// wall clock changes, as on a machine whose clock is set: pauses use the
// monotonic clock.
func (p *postgres) fakeClock(ctx context.Context, programs, cc string) error {
	dir := filepath.Join(p.dir, "clock")
	p.clockFile = filepath.Join(dir, "offset")
	library := filepath.Join(dir, "wallclock.so")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL runs as another user when we are root
		return fmt.Errorf("give PostgreSQL a clock that jumps: %w", err)
	}
	build := exec.CommandContext(ctx, cc, "-O2", "-shared", "-fPIC", "-o", library, "-x", "c", "-") //nolint:gosec // the compiler of this machine
	build.Stdin = bytes.NewReader(wallClock)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build a clock that jumps: %w: %s", err, out)
	}
	for _, program := range []string{"postgres", "initdb", baseBackup} {
		if _, err := os.Stat(filepath.Join(programs, program)); err != nil {
			continue // some installations do not have all of them
		}
		script := fmt.Sprintf("#!/bin/sh\nexport LD_PRELOAD='%s' WALLCLOCK_OFFSET='%s'\nexec '%s' \"$@\"\n", library, p.clockFile, filepath.Join(programs, program))
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil { //nolint:gosec // as above
			return fmt.Errorf("give PostgreSQL a clock that jumps: %w", err)
		}
	}
	p.programs = dir
	return p.setClock(0)
}

// restartWithClock restarts the server with a clock that can be set. If the
// clock does not follow, it restarts without.
func (p *postgres) restartWithClock(ctx context.Context, conn *pgx.Conn, cc string, progress func(string)) error {
	var programs string
	if err := conn.QueryRow(ctx, `SELECT setting FROM pg_config WHERE name = 'BINDIR'`).Scan(&programs); err != nil {
		return fmt.Errorf("find the programs of PostgreSQL: %w", err)
	}
	err := errors.Join(p.stop(), p.fakeClock(ctx, programs, cc))
	if err == nil {
		err = p.start(ctx, progress)
	}
	if err != nil {
		return err
	}
	obeys, err := p.clockObeys(ctx)
	if err != nil || obeys {
		return err
	}
	p.programs = ""
	if err := p.stop(); err != nil {
		return err
	}
	return p.start(ctx, progress)
}

// setClock sets the offset of the clock of PostgreSQL. The file is
// memory-mapped, so it must be written in place, not replaced.
func (p *postgres) setClock(offset time.Duration) error {
	file, err := os.OpenFile(p.clockFile, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // as above
	if err == nil {
		err = errors.Join(binary.Write(file, binary.NativeEndian, int64(offset)), file.Close())
	}
	if err != nil {
		return fmt.Errorf("set the clock of PostgreSQL: %w", err)
	}
	return nil
}

// clockObeys reports whether the clock follows the offset.
func (p *postgres) clockObeys(ctx context.Context) (bool, error) {
	if err := p.setClock(time.Hour); err != nil {
		return false, err
	}
	conn, err := pgx.Connect(ctx, p.dsn(databaseName))
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return false, fmt.Errorf("read the clock of PostgreSQL: %w", err)
	}
	ahead := time.Until(now)
	return ahead > 59*time.Minute && ahead < 61*time.Minute, p.setClock(0)
}

// launch starts the server, with the normal clock or the clock of the scripts.
func (p *postgres) launch(ctx context.Context, cfg localpg.Config) (*localpg.Server, error) {
	const choice = "POSTGRES_BIN_DIR" // localpg finds the programs only by this variable
	if before, set := os.LookupEnv(choice); p.programs != "" {
		if err := os.Setenv(choice, p.programs); err != nil {
			return nil, fmt.Errorf("choose PostgreSQL: %w", err)
		}
		defer func() {
			_ = os.Unsetenv(choice)
			if set {
				_ = os.Setenv(choice, before) // restored
			}
		}()
	}
	return localpg.Start(ctx, cfg)
}

// clockKinds returns the faults of a database whose clock is set.
func clockKinds() []fault {
	return []fault{
		{"database clock ahead", groupDatabase, ClockSet, databaseClock(false)},
		{"database clock back", groupDatabase, ClockSet, databaseClock(true)},
	}
}

// databaseClock sets the clock of the database, by a little more than a lease or
// by an hour, and sets it right again. Each time, all leases may seem to be
// over, also to their holders.
func databaseClock(back bool) func(context.Context, *lab, *rand.Rand, *FaultRecord) error {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		offset := time.Hour
		if r.IntN(2) == 0 {
			offset = lease + between(r, 200*time.Millisecond, 2*time.Second)
		}
		if back {
			offset = -offset
		}
		record.Target, record.MayRepeat = offset.String(), 2*len(l.publishers)*inHand
		if err := l.postgres.setClock(offset); err != nil {
			return err
		}
		sleep(ctx, between(r, time.Second, lease+time.Second))
		return l.postgres.setClock(0)
	}
}

// apiClock sets the clock of the events of one API process, and sets it right
// again.
func apiClock(offsets ...time.Duration) func(context.Context, *lab, *rand.Rand, *FaultRecord) error {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		p, offset := pick(r, l.serving), pick(r, offsets)
		record.Target, record.Clock = p.name+" "+offset.String(), offset
		half := p.clock() + ".half"
		err := errors.Join(os.WriteFile(half, []byte(offset.String()), 0o600), os.Rename(half, p.clock()))
		if err != nil {
			return fmt.Errorf("set the clock of %s: %w", p.name, err)
		}
		sleep(ctx, between(r, time.Second, 3*time.Second))
		if err := os.Remove(p.clock()); err != nil {
			return fmt.Errorf("set the clock of %s: %w", p.name, err)
		}
		return nil
	}
}
