package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/localpg"
)

// baseBackup is the program of PostgreSQL that copies a running server.
const baseBackup = "pg_basebackup"

// noFailover is why there is no failover where there is none.
const noFailover = "the database does not fail over: that needs " + baseBackup

// failoverKind is a standby that takes over. It has all that was acknowledged:
// what a failover may lose is in docs/failover.md, and TestFailover loses it.
var failoverKind = fault{"database failed over", groupDatabase, Outage, failOver}

func (p *postgres) canFailOver() bool {
	programs := p.current().Programs()
	if p.programs != "" {
		programs = p.programs
	}
	_, err := os.Stat(filepath.Join(programs, baseBackup))
	return err == nil
}

func failOver(ctx context.Context, l *lab, _ *rand.Rand, record *FaultRecord) error {
	record.MayRepeat = l.forgotten()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	dir, standby, err := l.postgres.standby(ctx, l.cfg.Progress)
	if err != nil {
		return err
	}
	record.Struck = time.Now()
	for _, p := range l.processes {
		defer p.proxy.stall()() // what the primary commits from now on is told to nobody
	}
	return l.postgres.failOverTo(ctx, dir, standby)
}

// standby returns a copy of the server that follows it, and its folder.
func (p *postgres) standby(ctx context.Context, progress func(string)) (dir string, standby *localpg.Server, err error) {
	p.copies++
	dir = filepath.Join(p.dir, fmt.Sprintf("copy-%d", p.copies))
	cfg := p.config(dir, progress)
	cfg.StandbyOf = p.current()
	standby, err = p.launch(ctx, cfg)
	return dir, standby, err
}

// failOverTo kills the server when the standby has all that the server has
// flushed, and promotes the standby. After an error one of them is the server.
func (p *postgres) failOverTo(ctx context.Context, dir string, standby *localpg.Server) error {
	err := p.handOver(ctx, standby)
	if err != nil {
		return errors.Join(fmt.Errorf("fail over: %w", err), standby.Stop())
	}
	err = p.kill()
	before := p.data
	p.data = dir
	p.replace(standby)
	return errors.Join(err, p.insist(ctx, "SELECT pg_promote()"), os.RemoveAll(before))
}

// handOver ends all sessions of the processes, which cannot come again, and
// waits until the standby has what they did.
func (p *postgres) handOver(ctx context.Context, standby *localpg.Server) error {
	primary, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer primary.Close(context.WithoutCancel(ctx))
	copied, err := pgx.Connect(ctx, standby.DSN(databaseName))
	if err != nil {
		return err
	}
	defer copied.Close(context.WithoutCancel(ctx))
	var flushed string
	for sessions := 1; sessions > 0; {
		err := primary.QueryRow(ctx, `
			SELECT count(pg_terminate_backend(pid)), pg_current_wal_flush_lsn()::text FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND application_name <> ''`).Scan(&sessions, &flushed)
		if err != nil {
			return err
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	for has := false; !has; {
		err := copied.QueryRow(ctx, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", flushed).Scan(&has)
		if err != nil {
			return err
		}
		if !has && !sleep(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}
