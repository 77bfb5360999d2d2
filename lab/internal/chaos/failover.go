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

	"example.com/servicekit/localpg"
)

// baseBackup is the program of PostgreSQL that copies a running server.
const baseBackup = "pg_basebackup"

// noFailover is the reason in the report when there is no failover.
const noFailover = "the database does not fail over: that needs " + baseBackup

// failoverKind promotes a standby that has everything that was acknowledged.
// options/repair/failover.md says what a failover may lose, and TestFailover tests it.
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
	for _, p := range l.clients() {
		defer p.proxy.stall()() // from now on, no client sees a commit of the primary
	}
	return l.postgres.failOverTo(ctx, dir, standby)
}

// standby returns a standby of the server, and its directory.
func (p *postgres) standby(ctx context.Context, progress func(string)) (dir string, standby *localpg.Server, err error) {
	p.copies++
	dir = filepath.Join(p.dir, fmt.Sprintf("copy-%d", p.copies))
	cfg := p.config(dir, progress)
	cfg.StandbyOf = p.current()
	standby, err = p.launch(ctx, cfg)
	return dir, standby, err
}

// failOverTo waits until the standby has all that the server has flushed, kills
// the server, and promotes the standby. After an error, p still has a server:
// the old or the new one.
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

// handOver ends all sessions of the processes, which cannot connect again, and
// waits until the standby has their changes.
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
