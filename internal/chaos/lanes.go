package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Trespass is something done to a lane by who had no right to.
type Trespass struct {
	At     time.Time
	Lane   int
	Who    string // the process
	Holder string // who had claimed the lane last
	What   string // trespassSettled or trespassTaken
}

// The trespasses.
const (
	trespassSettled = "settled"
	trespassTaken   = "taken"
)

// watchLanes has PostgreSQL itself remember who claimed each lane last, and
// write down whoever settles a lane that somebody else has claimed since, or
// claims one whose lease is running. The tokens prove nothing here, because the
// fence that compares them is what may be missing. A lease that would run for
// much longer than one can be was given by a clock that was set back since.
//
// Who is who is told by application_name, so the workers of one process are
// one. A claim is told from a settlement by the statement that the client sent,
// and the time is that of its transaction, so a clock that jumps changes
// nothing.
func watchLanes(ctx context.Context, c *pgx.Conn, lease time.Duration) error {
	// The margin is for a claim that reads the clock a moment later.
	margin := min(lease/10, 100*time.Millisecond)
	_, err := c.Exec(ctx, fmt.Sprintf(`
		CREATE SCHEMA chaos;
		CREATE TABLE chaos.holders (lane smallint PRIMARY KEY, who text NOT NULL, held bool NOT NULL) WITH (fillfactor = 10);
		CREATE TABLE chaos.trespasses (at timestamptz NOT NULL, lane smallint NOT NULL, who text NOT NULL, holder text NOT NULL, what text NOT NULL);
		CREATE FUNCTION chaos.watch_lane() RETURNS trigger LANGUAGE plpgsql AS $$
		DECLARE
			me text := current_setting('application_name');
			holder text := '';
			held bool := false;
		BEGIN
			SELECT h.who, h.held INTO holder, held FROM chaos.holders h WHERE h.lane = OLD.lane;
			IF current_query() LIKE '%%outbox_claim%%' THEN
				IF held AND OLD.leased_until > now() + interval '%[2]d ms' AND OLD.leased_until < now() + 1.5 * interval '%[1]d ms' THEN
					INSERT INTO chaos.trespasses VALUES (now(), OLD.lane, me, holder, '%[3]s');
				END IF;
				INSERT INTO chaos.holders AS h VALUES (OLD.lane, me, true) ON CONFLICT (lane) DO UPDATE SET who = excluded.who, held = true;
			ELSIF current_query() LIKE '%%outbox_settle%%' THEN
				IF held IS NOT TRUE OR holder <> me THEN
					INSERT INTO chaos.trespasses VALUES (now(), OLD.lane, me, coalesce(holder, ''), '%[4]s');
				END IF;
				UPDATE chaos.holders h SET held = false WHERE h.lane = OLD.lane;
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER chaos_watch AFTER UPDATE ON video.outbox_lanes FOR EACH ROW EXECUTE FUNCTION chaos.watch_lane()`,
		lease.Milliseconds(), margin.Milliseconds(), trespassTaken, trespassSettled))
	if err != nil {
		return fmt.Errorf("watch lanes: %w", err)
	}
	return nil
}

// readTrespasses answers what was written down.
func readTrespasses(ctx context.Context, c *pgx.Conn) ([]Trespass, error) {
	rows, err := c.Query(ctx, `SELECT at, lane, who, holder, what FROM chaos.trespasses ORDER BY at`)
	if err != nil {
		return nil, fmt.Errorf("read trespasses: %w", err)
	}
	trespasses, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Trespass])
	if err != nil {
		return nil, fmt.Errorf("read trespasses: %w", err)
	}
	return trespasses, nil
}
