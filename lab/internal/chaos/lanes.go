package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Trespass is a write to a lane by a process that does not hold it.
type Trespass struct {
	At     time.Time
	Lane   int
	Who    string // the process
	Holder string // the process with the last claim of the lane
	What   string // trespassSettled or trespassTaken
}

// The kinds of trespasses.
const (
	trespassSettled = "settled"
	trespassTaken   = "taken"
)

// watchLanes adds a trigger that records who claimed each lane last, and counts the
// lanes that each process settled. It records a trespass if a process settles a lane that another
// has claimed since, or claims one with a running lease. It does not use the tokens, because
// the fence that compares them may be what is broken.
//
// If a lease ends too late to be valid, the clock was set back after its claim. Such a lane
// may be claimed. A process may not claim its own lane again: a claim whose answer was lost
// waits for its lease.
//
// Processes are identified by application_name, so all workers of a process are one holder.
// The SQL text distinguishes a claim from a settlement. Times are the now() of the transaction,
// so a change of the clock has no effect.
func watchLanes(ctx context.Context, c *pgx.Conn, lease time.Duration) error {
	// The margin is for a claim that reads the clock a little later.
	margin := min(lease/10, 100*time.Millisecond)
	_, err := c.Exec(ctx, fmt.Sprintf(`
		CREATE SCHEMA IF NOT EXISTS chaos;
		CREATE TABLE chaos.holders (lane smallint PRIMARY KEY, who text NOT NULL, held bool NOT NULL, claim xid8 NOT NULL) WITH (fillfactor = 10);
		CREATE TABLE chaos.settlements (lane smallint, who text, n bigint NOT NULL, PRIMARY KEY (lane, who)) WITH (fillfactor = 10);
		CREATE TABLE chaos.trespasses (at timestamptz NOT NULL, lane smallint NOT NULL, who text NOT NULL, holder text NOT NULL, what text NOT NULL);
		CREATE FUNCTION chaos.watch_lane() RETURNS trigger LANGUAGE plpgsql AS $$
		DECLARE
			me text := current_setting('application_name');
			holder text := '';
			held bool := false;
		BEGIN
			SELECT h.who, h.held INTO holder, held FROM chaos.holders h WHERE h.lane = OLD.lane;
			IF current_query() LIKE '%%name: LeaseLanes %%' THEN
				IF held AND OLD.leased_until > now() + interval '%[2]d ms' AND OLD.leased_until < now() + 2 * interval '%[1]d ms' THEN
					INSERT INTO chaos.trespasses VALUES (now(), OLD.lane, me, holder, '%[3]s');
				END IF;
				INSERT INTO chaos.holders AS h VALUES (OLD.lane, me, true, pg_current_xact_id())
					ON CONFLICT (lane) DO UPDATE SET who = excluded.who, held = true, claim = excluded.claim;
			ELSIF current_query() LIKE '%%name: ReleaseLanes %%' THEN
				IF held IS NOT TRUE OR holder <> me THEN
					INSERT INTO chaos.trespasses VALUES (now(), OLD.lane, me, coalesce(holder, ''), '%[4]s');
				END IF;
				UPDATE chaos.holders h SET held = false WHERE h.lane = OLD.lane;
				INSERT INTO chaos.settlements AS s VALUES (OLD.lane, me, 1) ON CONFLICT (lane, who) DO UPDATE SET n = s.n + 1;
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER chaos_watch AFTER UPDATE ON video_catalog.outbox_lanes FOR EACH ROW EXECUTE FUNCTION chaos.watch_lane()`,
		lease.Milliseconds(), margin.Milliseconds(), trespassTaken, trespassSettled))
	if err != nil {
		return fmt.Errorf("watch lanes: %w", err)
	}
	return nil
}

// heldBy returns how many events these processes may have claimed. These are the events
// pending or deferred in the lanes that they hold. A lane has an equal share of the batch of its
// claim, and half as many deferred ones.
func heldBy(ctx context.Context, c *pgx.Conn, names []string, batch int) (n int, err error) {
	err = c.QueryRow(ctx, `
		SELECT coalesce(sum(
			least(h.share, (SELECT count(*) FROM video_catalog.outbox_pending p WHERE p.lane = h.lane)) +
			least((h.share + 1) / 2, (SELECT count(*) FROM video_catalog.outbox_deferred d WHERE d.lane = h.lane))
		), 0)::int
		FROM (SELECT *, greatest(1, $2::bigint / count(*) OVER (PARTITION BY claim)) AS share FROM chaos.holders) h
		WHERE h.held AND h.who = ANY($1)`, names, batch).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count what is held: %w", err)
	}
	return n, nil
}

// readSettlements returns how many lanes each process has settled.
func readSettlements(ctx context.Context, c *pgx.Conn) (map[string]int64, error) {
	settled := make(map[string]int64)
	var who string
	var n int64
	const sql = `SELECT who, sum(n)::bigint FROM chaos.settlements GROUP BY who`
	return settled, each(ctx, c, "read settlements", sql, []any{&who, &n}, func() error { settled[who] = n; return nil })
}

// laneStays is how long one claim may lease a lane. That is two leases, if the clock was set
// back by almost a lease, plus the time of a check.
const laneStays = 2*lease + 3*time.Second

// leases records the leases that repeated checks find.
type leases struct {
	since    map[leased]time.Time // since when every check has found the lease of a claim
	reported map[leased]bool
}

// leased is a lane, and the token of the claim that leases it.
type leased struct {
	lane  int
	token int64
}

func newLeases() *leases { return &leases{map[leased]time.Time{}, map[leased]bool{}} }

// saw records the leases that a check found. It returns those that last too long, each only
// once.
func (l *leases) saw(at time.Time, now []leased) (stay []leased) {
	since := make(map[leased]time.Time, len(now))
	for _, claim := range now {
		since[claim] = at
		if first, ok := l.since[claim]; ok {
			since[claim] = first
		}
		if at.Sub(since[claim]) > laneStays && !l.reported[claim] {
			l.reported[claim] = true
			stay = append(stay, claim)
		}
	}
	l.since = since
	return stay
}

// readLeases returns the leases in force, as a publisher sees them. A lease that ends too late
// to be valid is not in force.
func readLeases(ctx context.Context, c *pgx.Conn) (claims []leased, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // so that later checks happen even if one hangs
	defer cancel()
	const sql = `
		SELECT lane::int, token FROM video_catalog.outbox_lanes
		WHERE token <> 0 AND leased_until BETWEEN clock_timestamp() AND clock_timestamp() + 2 * $1::interval`
	var claim leased
	err = each(ctx, c, "read leases", sql, []any{&claim.lane, &claim.token}, func() error { claims = append(claims, claim); return nil }, lease)
	return claims, err
}

// watchLeases checks every second for lanes that stay leased, until ctx ends. A check that
// fails changes nothing.
func (l *lab) watchLeases(ctx context.Context) {
	seen := newLeases()
	for sleep(ctx, time.Second) {
		err := l.look(ctx, func(ctx context.Context, c conn) error {
			for {
				claims, err := readLeases(ctx, c)
				if err != nil {
					return err
				}
				l.leaseLooks++
				for _, claim := range seen.saw(time.Now(), claims) {
					l.problem(LaneStays, "lane %d has been leased by the claim %d for more than %s", claim.lane, claim.token, laneStays)
				}
				if !sleep(ctx, time.Second) {
					return nil
				}
			}
		})
		if err != nil && ctx.Err() == nil {
			l.timeline.InfoContext(ctx, "leases not seen", "err", err.Error())
		}
	}
}

// readTrespasses returns the recorded trespasses.
func readTrespasses(ctx context.Context, c *pgx.Conn) ([]Trespass, error) {
	rows, _ := c.Query(ctx, `SELECT at, lane, who, holder, what FROM chaos.trespasses ORDER BY at`) // CollectRows returns the error of the query, too
	trespasses, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Trespass])
	if err != nil {
		return nil, fmt.Errorf("read trespasses: %w", err)
	}
	return trespasses, nil
}
