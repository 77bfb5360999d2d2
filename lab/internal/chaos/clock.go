package chaos

import (
	"bytes"
	"context"
	_ "embed" // see wallClock
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

	"example.com/videocatalog/internal/localpg"
)

// wallClock is a library that gives a program another time. One of our own:
// https://github.com/wolfcw/libfaketime opens a file whenever the clock is read,
// also inside of PostgreSQL's signal handlers, where now and then that hangs.
//
//go:embed wallclock/wallclock.c
var wallClock []byte

// noClock is why the clock of PostgreSQL does not jump where it cannot.
const noClock = "the clock of the database does not jump: that needs Linux and a C compiler (cc)"

// compiler is what builds wallClock; empty: nothing here does.
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

// fakeClock has PostgreSQL run by a script that preloads the library; from its
// next start on, its clock is what the file says. Only the wall clock: by the
// other one it sleeps, as it does on a machine whose clock is set.
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
			continue // not all installations have them all
		}
		script := fmt.Sprintf("#!/bin/sh\nexport LD_PRELOAD='%s' WALLCLOCK_OFFSET='%s'\nexec '%s' \"$@\"\n", library, p.clockFile, filepath.Join(programs, program))
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil { //nolint:gosec // likewise
			return fmt.Errorf("give PostgreSQL a clock that jumps: %w", err)
		}
	}
	p.programs = dir
	return p.setClock(0)
}

// restartWithClock gives the server a clock that can be set, unless it does not
// obey.
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

// setClock lets the clock of PostgreSQL be wrong by an offset. It writes into
// the file, which is mapped, and does not replace it.
func (p *postgres) setClock(offset time.Duration) error {
	file, err := os.OpenFile(p.clockFile, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // likewise
	if err == nil {
		err = errors.Join(binary.Write(file, binary.NativeEndian, int64(offset)), file.Close())
	}
	if err != nil {
		return fmt.Errorf("set the clock of PostgreSQL: %w", err)
	}
	return nil
}

// clockObeys looks whether the clock is as it was set.
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

// launch starts the server, with its own clock or with that of the script.
func (p *postgres) launch(ctx context.Context, cfg localpg.Config) (*localpg.Server, error) {
	const choice = "POSTGRES_BIN_DIR" // localpg asks nobody else
	if before, set := os.LookupEnv(choice); p.programs != "" {
		if err := os.Setenv(choice, p.programs); err != nil {
			return nil, fmt.Errorf("choose PostgreSQL: %w", err)
		}
		defer func() {
			_ = os.Unsetenv(choice)
			if set {
				_ = os.Setenv(choice, before) // as it was
			}
		}()
	}
	return localpg.Start(ctx, cfg)
}

// clockKinds are the faults of a database whose clock jumps.
func clockKinds() []fault {
	return []fault{
		{"database clock ahead", groupDatabase, ClockSet, databaseClock(false)},
		{"database clock back", groupDatabase, ClockSet, databaseClock(true)},
	}
}

// databaseClock sets the clock of the database, by a little more than a lease
// or by an hour, and right again. Each time all leases may be over, for those
// who hold them too.
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

// apiClock sets the clock of one API process, by which its events get their
// ids and times, and right again.
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
