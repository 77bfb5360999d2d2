package chaos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

// The relays that a run may have.
const (
	RelayLanes = "lanes"
	RelayWAL   = "wal" // the publishers read the log: one has the slot
)

const (
	// readerPatience is longer than PostgreSQL and a reader of the log wait for each other.
	readerPatience = 16 * time.Second
	// inQueue is how many events a reader may have in hand. All of them come again when it loses its connection.
	inQueue = 20_000
)

// startRelay switches to the relay of the run, before a process runs.
func (l *lab) startRelay(ctx context.Context) error {
	if l.cfg.Relay != RelayWAL {
		return nil
	}
	cmd := exec.CommandContext(ctx, l.present, "relay", RelayWAL, why, "--by=lab") //nolint:gosec // we have built it
	cmd.Env = append(os.Environ(), append(l.toBroker, "DATABASE_URL="+l.postgres.dsn(databaseName))...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("relay: %w: %s", err, out)
	}
	return nil
}

// publishers returns the publishers that a fault may affect: in mode wal the one that reads the log, if there is one.
func publishers(l *lab) []*process {
	if l.cfg.Relay != RelayWAL {
		return l.publishers
	}
	var name string
	err := l.ask(context.Background(), &name, `
		SELECT coalesce(max(a.application_name), '') FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid`)
	i := slices.IndexFunc(l.publishers, func(p *process) bool { return p.name == name })
	if err != nil || i < 0 {
		return l.publishers
	}
	return l.publishers[i : i+1]
}

// inTheLog returns how many events the last reader has not confirmed. It fails if that one is frozen, or if another has the slot already.
func inTheLog(ctx context.Context, c conn) (n int, err error) {
	err = c.QueryRow(ctx, `
		SELECT count(*) FROM pg_replication_slots s CROSS JOIN LATERAL pg_logical_slot_peek_binary_changes(s.slot_name, NULL, NULL,
			'proto_version', '1', 'publication_names', 'video_catalog_outbox') p
		WHERE get_byte(p.data, 0) = ascii('I')`).Scan(&n)
	return n, err
}

// confirmed waits until the reader has confirmed all that is in the log now.
func confirmed(ctx context.Context, c conn) error {
	var end string
	if err := c.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&end); err != nil {
		return err
	}
	for isConfirmed := false; !isConfirmed; {
		err := c.QueryRow(ctx, "SELECT coalesce(min(confirmed_flush_lsn) >= $1::text::pg_lsn, false) FROM pg_replication_slots", end).Scan(&isConfirmed)
		if err != nil {
			return err
		}
		if !isConfirmed && !sleep(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}
