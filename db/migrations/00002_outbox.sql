-- +goose Up
-- The outbox. docs/decisions/0003-lanes-and-leases.md says why it has this shape.

-- Smallest UUIDv7 of an instant: the bounds of the partitions.
CREATE FUNCTION video.uuid7_floor(t timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (lpad(to_hex(floor(extract(epoch FROM t) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- The one definition of "lane". It must never change while events are pending: one aggregate in two
-- lanes has two publishers. Nobody promises that this hash is the same after an upgrade, though hash partitions
-- depend on it too: docs/failover.md has what to run then. md5 would be sure, and is a sixth of an append.
CREATE FUNCTION video.outbox_lane(aggregate_type text, aggregate_id text) RETURNS smallint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (hashtextextended(aggregate_type || '/' || aggregate_id, 0) & 7)::smallint;

CREATE TABLE video.outbox (
	id uuid NOT NULL,
	aggregate_type text NOT NULL,
	aggregate_id text NOT NULL,
	event_type text NOT NULL,
	version bigint NOT NULL,
	schema_version int NOT NULL,
	payload bytea NOT NULL,
	occurred_at timestamptz NOT NULL,
	traceparent text,
	PRIMARY KEY (id)
) PARTITION BY RANGE (id);

COMMENT ON TABLE video.outbox IS 'Every event of the last days, append-only: never updated, dropped by partition. What a CDC reader would tail, and the source of a republish.';
COMMENT ON COLUMN video.outbox.id IS 'The event id, a UUIDv7: its time decides the partition.';
COMMENT ON COLUMN video.outbox.traceparent IS 'W3C trace context of the command, if it had one.';

CREATE TABLE video.outbox_pending (
	lane smallint NOT NULL,
	seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
	id uuid NOT NULL,
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	event_type text NOT NULL,
	version bigint NOT NULL,
	schema_version int NOT NULL,
	payload bytea NOT NULL,
	occurred_at timestamptz NOT NULL,
	traceparent text,
	PRIMARY KEY (lane, seq)
) PARTITION BY LIST (lane);

-- A partition per lane, so that the rows of a claim are neighbors, and one for what is set aside, so that a claim is the
-- same with and without it. A queue's statistics are always wrong, so it has none; what it needs is frequent vacuum.
CREATE TABLE video.outbox_aside PARTITION OF video.outbox_pending FOR VALUES IN (-1) WITH (
	autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
	autovacuum_vacuum_insert_threshold = -1,
	autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000
);
-- +goose StatementBegin
DO $$
BEGIN
	FOR lane IN 0..7 LOOP
		EXECUTE format($create$
			CREATE TABLE video.outbox_lane_%1$s PARTITION OF video.outbox_pending FOR VALUES IN (%1$s) WITH (
				autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
				autovacuum_vacuum_insert_threshold = -1,
				autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000
			)$create$, lane);
	END LOOP;
END $$;
-- +goose StatementEnd

COMMENT ON TABLE video.outbox_pending IS 'One row per event not yet known to be in Pub/Sub; inserted with the event, deleted when the broker has it. A copy of it, so that a claim reads nothing else.';
COMMENT ON COLUMN video.outbox_pending.lane IS '0 to 7, by hash of the aggregate; -1: set aside, because its aggregate is blocked.';
COMMENT ON COLUMN video.outbox_pending.seq IS 'The order inside an aggregate; drawn after the row lock of the aggregate, from a sequence with CACHE 1.';

COMMENT ON TABLE video.outbox_aside IS 'The pending events of blocked aggregates.';

-- "lane + 0", and not nothing, so that this index is used only where a query says so, and the key where it does not:
-- the estimates that would choose between them are as wrong as all others here.
CREATE INDEX outbox_aside_aggregate ON video.outbox_aside (aggregate_type, aggregate_id, seq) WHERE lane + 0 = -1;

CREATE TABLE video.outbox_lanes (
	lane smallint NOT NULL,
	era bigint NOT NULL DEFAULT 0,
	lease_token bigint NOT NULL DEFAULT 0,
	leased_until timestamptz NOT NULL DEFAULT '-infinity',
	leased_for interval NOT NULL DEFAULT '0',
	floor_seq bigint NOT NULL DEFAULT 0,
	mark_seq bigint NOT NULL DEFAULT 0,
	mark_xid xid8 NOT NULL DEFAULT '0',
	mark_ripe bool NOT NULL DEFAULT false,
	settled_seq bigint NOT NULL DEFAULT 0,
	settlements bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (lane, era)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

COMMENT ON TABLE video.outbox_lanes IS 'The unit of claim: one row per lane. No index but the key, so most updates stay HOT.';
COMMENT ON COLUMN video.outbox_lanes.settlements IS 'How many there have been, which makes the era.';
COMMENT ON COLUMN video.outbox_lanes.era IS 'Grows with every fiftieth settlement. The highest of a lane is the valid one, and leads past all versions of earlier ones.';
COMMENT ON COLUMN video.outbox_lanes.lease_token IS 'The fence: drawn at random for every claim, by its caller; 0 once it is released.';
COMMENT ON COLUMN video.outbox_lanes.leased_until IS 'A release writes the present, so the lane served longest ago goes first.';
COMMENT ON COLUMN video.outbox_lanes.leased_for IS 'What the last claim asked for: a lease that ends much later is one of a clock that has been set back.';
COMMENT ON COLUMN video.outbox_lanes.floor_seq IS 'No pending row of this lane at or below it exists or can appear.';
COMMENT ON COLUMN video.outbox_lanes.mark_seq IS 'The next floor, once every transaction before mark_xid has ended.';
COMMENT ON COLUMN video.outbox_lanes.mark_ripe IS 'Written by the claim: had they all ended in its own snapshot?';
COMMENT ON COLUMN video.outbox_lanes.settled_seq IS 'How far settlements have come. Behind it is what is pending, but what was committed late or is not known to be published.';

INSERT INTO video.outbox_lanes (lane) SELECT generate_series(0, 7);

CREATE TABLE video.outbox_blocked (
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	lane smallint NOT NULL,
	attempts int NOT NULL,
	next_retry_at timestamptz,
	last_error text NOT NULL,
	parked_at timestamptz,
	floor_seq bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (aggregate_type, aggregate_id)
);

COMMENT ON TABLE video.outbox_blocked IS 'A row per aggregate that has had an event refused by the broker, and has not caught up since.';
COMMENT ON COLUMN video.outbox_blocked.attempts IS 'How often its first event was refused when it was the first of a pass; 0 again when a person requeues or skips.';
COMMENT ON COLUMN video.outbox_blocked.floor_seq IS 'No event of it at or below it is set aside, or will be.';
COMMENT ON COLUMN video.outbox_blocked.next_retry_at IS 'NULL: parked, until a person requeues or skips the event.';

CREATE INDEX outbox_blocked_due ON video.outbox_blocked (lane, next_retry_at);

CREATE TABLE video.requests (
	aggregate_type text NOT NULL,
	request_id uuid NOT NULL,
	aggregate_id text NOT NULL,
	fingerprint bytea NOT NULL,
	create_time timestamptz NOT NULL,
	PRIMARY KEY (aggregate_type, request_id)
);

COMMENT ON TABLE video.requests IS 'Which aggregate a request_id made, so that a repeated create makes no second one (AIP-155). Pruned after a day.';
COMMENT ON COLUMN video.requests.fingerprint IS 'SHA-256 of what was asked for: the same id with another content is refused.';

CREATE INDEX requests_create_time ON video.requests (create_time);

-- The claim is a function, and not a statement of the client, because its plan is then cached by the session even where
-- the client must not prepare statements (a transaction pooler): of the 0.80 ms of an empty claim, 0.65 are planning.
--
-- Its plans must not depend on statistics. Those of a queue are always wrong: mostly it is empty when they are taken, and a
-- session that made its plans then keeps them through the next outage. So the claim knows neither sequential scans nor
-- bitmaps, leaves the planner one index to use, and is never compiled, which takes longer than it does. The queries that
-- settle and measure do the same: see UseOutboxIndexes in db/queries/outbox.sql.
--
-- The row of a lane is looked for by its highest era. While somebody holds an old snapshot, as a dump does, PostgreSQL
-- keeps every version of the eight rows, two per pass: WHERE lane = n alone would read them all.

-- Takes the lease of the lane that has work and was served longest ago, and returns its oldest events, in
-- any order; nothing when no lane has work. By the clock of the database. Events of a blocked aggregate are
-- answered as blocked; and what was set aside, of up to 100 aggregates that are due, as for a retry. An event is the
-- last one when it is the max_events-th, or when the payloads up to it have max_bytes; those for a retry are
-- counted apart, aggregate by aggregate, the one that has been due for longest first. An event that has attempts is
-- answered without those behind it. A row with seq 0 is no event: with an aggregate it says that this
-- blocked aggregate has nothing left to retry, without one that the lane has nothing any longer.
-- With only_lane it takes that lane or none, and none when nothing is behind the mark there: for who knows of a commit.
-- What was committed late, what is due, and the lane of a clock that was set back it leaves to claims without.
--
-- token is the one of the new lease, above 0. The caller draws it at random: a crash or a failover may forget a claim, which
-- is committed asynchronously, and the next one must not have its token. A counter would begin again where it was, and so
-- would the clock where it had been ahead. lost_tokens are those of claims whose answer the caller never got: the lanes they
-- hold are as free. Because the caller has drawn them, it knows them without an answer.
--
-- Statements of their own and not one, so that the usual claim, and the one that finds nothing, pay for no
-- plan but theirs. Each sees what was committed before it. That is safe behind the first, which locks the
-- lane: only the holder of its lease takes events out of it, blocks an aggregate or ends that.
-- +goose StatementBegin
CREATE FUNCTION video.outbox_claim(
	max_events int, max_bytes bigint, lease_for interval, only_lane smallint DEFAULT NULL,
	token bigint DEFAULT 1 + (random() * 9e15)::bigint, lost_tokens bigint[] DEFAULT '{}'
) RETURNS TABLE (
	lane smallint, lease_token bigint, seq bigint, retry bool, blocked bool, attempts int,
	id uuid, aggregate_type text, aggregate_id text, version bigint,
	event_type text, schema_version int, payload bytea, occurred_at timestamptz, traceparent text
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
	the_row tid;
	lease record;
	none bool; -- of its aggregates are blocked
	few bool;
BEGIN
	-- In both: LATERAL with LIMIT, not EXISTS, which may become a hash of the whole pending table; with ORDER BY, without
	-- which the plan may be a sequential scan.
	IF only_lane IS NOT NULL THEN
		-- One partition is opened. The statement below opens them all, which is half of what a small claim takes.
		SELECT free.ctid INTO the_row
		FROM video.outbox_lanes free
		CROSS JOIN LATERAL (
			SELECT 1 FROM video.outbox_pending p
			WHERE p.lane = only_lane AND p.seq > free.mark_seq
			ORDER BY p.seq LIMIT 1
		) work
		WHERE free.ctid = (SELECT l.ctid FROM video.outbox_lanes l WHERE l.lane = only_lane ORDER BY l.era DESC LIMIT 1)
			AND (free.leased_until < now() OR free.lease_token = ANY (lost_tokens))
		FOR UPDATE OF free SKIP LOCKED;
	ELSE
		SELECT free.ctid INTO the_row
		FROM (
			SELECT l.* FROM generate_series(0, 7) AS n
			CROSS JOIN LATERAL (
				SELECT l.ctid AS newest, l.leased_until FROM video.outbox_lanes l
				WHERE l.lane = n ORDER BY l.era DESC LIMIT 1
			) l
			-- What is leased, and what a clock that was ahead has released, comes first: the one is passed over below, the
			-- other would wait for all others. SQL does not promise that a join keeps this order; these plans do.
			ORDER BY CASE WHEN l.leased_until > now() THEN '-infinity' ELSE l.leased_until END
		) l
		JOIN video.outbox_lanes free ON free.ctid = l.newest
		CROSS JOIN LATERAL (
			-- Behind what is settled first: before it are the dead rows of the last claims. Where somebody is claiming, and
			-- will have the lane until its transaction ends, everybody else looks here in vain.
			(SELECT 1 FROM video.outbox_pending p
			WHERE p.lane = free.lane AND p.seq > free.settled_seq
			ORDER BY p.seq LIMIT 1)
			UNION ALL
			(SELECT 1 FROM video.outbox_pending p
			WHERE p.lane = free.lane AND p.seq > free.floor_seq AND p.seq <= free.settled_seq
			ORDER BY p.seq LIMIT 1)
			UNION ALL
			(SELECT 1 FROM video.outbox_blocked b WHERE b.lane = free.lane AND b.next_retry_at <= now() LIMIT 1)
			LIMIT 1
		) work
		-- In the middle: the clock has been set back since.
		WHERE free.leased_until < now() OR free.leased_until > now() + 2 * free.leased_for OR free.lease_token = ANY (lost_tokens)
		LIMIT 1
		FOR UPDATE OF free SKIP LOCKED;
	END IF;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	UPDATE video.outbox_lanes l
	SET lease_token = token,
		leased_until = clock_timestamp() + lease_for,
		leased_for = lease_for,
		mark_ripe = pg_snapshot_xmin(pg_current_snapshot()) >= l.mark_xid
	WHERE l.ctid = the_row
	RETURNING l.lane, l.lease_token, l.floor_seq INTO lease;
	-- Until the end of this transaction: losing a lease in a crash means publishing twice, never losing.
	PERFORM set_config('synchronous_commit', 'off', true);

	SELECT count(*) <= 1000, count(*) = 0 INTO few, none
	FROM (SELECT 1 FROM video.outbox_blocked b WHERE b.lane = lease.lane ORDER BY b.lane, b.next_retry_at LIMIT 1001) b;
	IF none THEN
		RETURN QUERY
		SELECT lease.lane, lease.lease_token, p.seq, false, false, 0, p.id, p.aggregate_type, p.aggregate_id, p.version,
			p.event_type, p.schema_version, p.payload, p.occurred_at, coalesce(p.traceparent, '')
		FROM (
			SELECT *, sum(octet_length(p.payload)) OVER (ORDER BY p.seq ROWS UNBOUNDED PRECEDING) - octet_length(p.payload) AS bytes_before
			FROM video.outbox_pending p
			WHERE p.lane = lease.lane AND p.seq > lease.floor_seq
			ORDER BY p.seq LIMIT max_events
		) p
		WHERE p.bytes_before < max_bytes;
	ELSE
		-- To begin the statement costs more than to ask; what is parked is never due.
		IF EXISTS (SELECT FROM video.outbox_blocked b WHERE b.lane = lease.lane AND b.next_retry_at <= now()) THEN
			RETURN QUERY
			SELECT lease.lane, lease.lease_token, coalesce(p.seq, 0), true, false, p.attempts,
				coalesce(p.id, '00000000-0000-0000-0000-000000000000'), p.aggregate_type, p.aggregate_id, coalesce(p.version, 0),
				coalesce(p.event_type, ''), coalesce(p.schema_version, 0), coalesce(p.payload, ''), coalesce(p.occurred_at, 'epoch'), coalesce(p.traceparent, '')
			FROM (
				SELECT *, sum(octet_length(p.payload)) OVER (
					ORDER BY p.next_retry_at, p.aggregate_type, p.aggregate_id, p.seq ROWS UNBOUNDED PRECEDING
				) - octet_length(p.payload) AS bytes_before
				FROM (
					-- LEFT JOIN: an aggregate with nothing set aside has recovered, and is answered without an event.
					SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.next_retry_at,
						a.seq, a.id, a.version, a.event_type, a.schema_version, a.payload, a.occurred_at, a.traceparent
					FROM (
						SELECT * FROM video.outbox_blocked b
						WHERE b.lane = lease.lane AND b.next_retry_at <= now()
						ORDER BY b.next_retry_at LIMIT least(100, max_events) -- few of them in a probe
					) b
					LEFT JOIN LATERAL (
						SELECT * FROM video.outbox_aside a
						-- Behind the dead rows of the aggregate. As rows: with a condition on seq alone, the planner may read
						-- all of the primary key, (lane, seq).
						WHERE a.lane + 0 = -1 AND (a.aggregate_type, a.aggregate_id, a.seq) > (b.aggregate_type, b.aggregate_id, b.floor_seq)
							AND (a.aggregate_type, a.aggregate_id) <= (b.aggregate_type, b.aggregate_id)
						ORDER BY a.aggregate_type, a.aggregate_id, a.seq
						-- Alone, because the broker refuses all of a request that has one bad message.
						LIMIT CASE b.attempts WHEN 0 THEN max_events ELSE 1 END
					) a ON true
					LIMIT max_events -- no more than those are read
				) p
			) p
			WHERE p.seq IS NULL OR p.bytes_before < max_bytes;
		END IF;
		RETURN QUERY
		SELECT lease.lane, lease.lease_token, p.seq, false,
			-- Of few blocked aggregates a hash, which LIMIT promises to be small. First one of their ids alone, which costs
			-- less and tells most events apart. Of many one probe per row: OFFSET 0 forbids a hash of them all.
			CASE WHEN few THEN
				p.aggregate_id IN (SELECT b.aggregate_id FROM video.outbox_blocked b WHERE b.lane = lease.lane LIMIT 1000)
				AND (p.aggregate_type, p.aggregate_id) IN (SELECT b.aggregate_type, b.aggregate_id FROM video.outbox_blocked b WHERE b.lane = lease.lane LIMIT 1000)
			ELSE
				EXISTS (SELECT 1 FROM video.outbox_blocked b WHERE b.aggregate_type = p.aggregate_type AND b.aggregate_id = p.aggregate_id OFFSET 0)
			END,
			0, p.id, p.aggregate_type, p.aggregate_id, p.version,
			p.event_type, p.schema_version, p.payload, p.occurred_at, coalesce(p.traceparent, '')
		FROM (
			SELECT *, sum(octet_length(p.payload)) OVER (ORDER BY p.seq ROWS UNBOUNDED PRECEDING) - octet_length(p.payload) AS bytes_before
			FROM video.outbox_pending p
			WHERE p.lane = lease.lane AND p.seq > lease.floor_seq
			ORDER BY p.seq LIMIT max_events
		) p
		WHERE p.bytes_before < max_bytes;
	END IF;
	IF NOT FOUND THEN
		RETURN QUERY SELECT lease.lane, lease.lease_token, 0::bigint, false, false, 0,
			'00000000-0000-0000-0000-000000000000'::uuid, '', '', 0::bigint, '', 0, ''::bytea, 'epoch'::timestamptz, '';
	END IF;
END $$;
-- +goose StatementEnd

-- Makes the partitions of the outbox from yesterday until days_ahead days from now, and drops those that
-- are older than keep: an event that is still pending is published all the same. Answers how many it made and dropped; none
-- while another process is at it, and not all while somebody uses them, or when there are many: the next time goes on.
-- One that cannot be dropped stays, with a warning in the log of PostgreSQL.
-- SECURITY DEFINER: the service itself may not create tables.
-- +goose StatementBegin
CREATE FUNCTION video.outbox_maintain(days_ahead int, keep interval)
RETURNS TABLE (created int, dropped int) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' SET timezone = 'UTC' AS $$
DECLARE
	day date;
	old name;
	locked_at timestamptz;
BEGIN
	created := 0;
	dropped := 0;
	BEGIN
		-- One process at a time. Whoever waits for longer than lock_timeout leaves the rest to it.
		PERFORM pg_advisory_xact_lock(hashtext('video.outbox_maintain'));
	EXCEPTION WHEN lock_not_available THEN
		RETURN NEXT;
		RETURN;
	END;
	FOR day IN SELECT generate_series(current_date - 1, current_date + days_ahead, interval '1 day') LOOP
		IF to_regclass(format('video.outbox_p%s', to_char(day, 'YYYYMMDD'))) IS NULL THEN
			-- LIKE and ATTACH lock the parent against other DDL only; PARTITION OF would stop every append.
			EXECUTE format('CREATE TABLE video.outbox_p%s (LIKE video.outbox INCLUDING ALL)', to_char(day, 'YYYYMMDD'));
			EXECUTE format('ALTER TABLE video.outbox ATTACH PARTITION video.outbox_p%s FOR VALUES FROM (%L) TO (%L)',
				to_char(day, 'YYYYMMDD'), video.uuid7_floor(day), video.uuid7_floor(day + 1));
			created := created + 1;
		END IF;
	END LOOP;
	FOR old IN
		SELECT p.relname
		FROM (
			SELECT c.relname, to_date(substr(c.relname, 9), 'YYYYMMDD') AS day
			FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
			WHERE i.inhparent = 'video.outbox'::regclass AND c.relname ~ '^outbox_p[0-9]{8}$' -- no other is ours
			OFFSET 0 -- or the plan may take the names of other relations for dates
		) p
		WHERE p.day + 1 <= now() - keep
		ORDER BY p.day
	LOOP
		EXIT WHEN clock_timestamp() > locked_at + interval '200 ms'; -- the writers have waited long enough
		BEGIN
			EXECUTE format('DROP TABLE video.%I', old); -- locks the parent first, as every append does
			locked_at := coalesce(locked_at, clock_timestamp());
			dropped := dropped + 1;
		EXCEPTION
			WHEN lock_not_available THEN
				-- Somebody reads it, or has a long transaction: rather next time than stopping the writers.
				EXIT;
			WHEN OTHERS THEN
				-- Such as a view or a foreign key on it, which DROP does not take along. It stays: no reason to undo
				-- the partitions made above, without which there are no commands soon.
				RAISE WARNING 'partition % cannot be dropped: %', old, SQLERRM;
		END;
	END LOOP;
	RETURN NEXT;
END $$;
-- +goose StatementEnd

SELECT * FROM video.outbox_maintain(7, interval '7 days');

-- +goose Down
DROP TABLE video.outbox, video.outbox_pending, video.outbox_lanes, video.outbox_blocked, video.requests;
DROP FUNCTION video.outbox_claim, video.outbox_maintain, video.outbox_lane, video.uuid7_floor;
